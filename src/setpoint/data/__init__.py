"""Text in, batches out: sources, tokenizer, split, corpora, rows, sampler and loader.

Reading order: `document`, `sources/`, `tokenizer`, `reading`, `corpus`, `sides`, `order`, `rows`,
`packing`, `loader`; `stream` and `lanes` for streamed sources; `prepare`, `workers`, `token_store`
and `push` for prepared data. This file imports nothing, so that `setpoint.data.config` stays free
of numpy and torch.
"""
