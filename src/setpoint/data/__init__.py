"""Text in, batches out: sources, tokenizer, split, corpus, window loader and n-gram baselines.

Reading order: `document`, `sources/`, `split`, `tokenizer`, `corpus`, `windows`, `loader`,
`evaluation`, `ngram`.
Nothing is imported here, so that `setpoint.data.config` stays free of numpy and torch.
"""
