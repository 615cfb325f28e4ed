"""Text in, batches out: sources, tokenizer, split, store, rows, sampler and loader.

Reading order: `document`, `sources/`, `tokenizers/`, `reading`, `corpus`, `rows`, `order`,
`packing`, `sampler`, `loader`, `evaluation`; `stream` and `lanes` for streamed sources; `cache`,
`store`, `prepare` and `push` for prepared data.
Nothing is imported here, so that `setpoint.data.config` stays free of numpy and torch.
"""
