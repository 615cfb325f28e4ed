"""Text in, batches out: sources, tokenizer, split, store, rows, sampler and loader.

Reading order: `document`, `sources/`, `tokenizers/`, `split`, `store`, `corpus`, `rows`, `sampler`,
`packing`, `mixture`, `loader`, `evaluation`; `stream` and `lanes` for data that is read while
training runs; `cache`, `prepare` and `push` for prepared data.
Nothing is imported here, so that `setpoint.data.config` stays free of numpy and torch.
"""
