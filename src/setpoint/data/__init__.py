"""Text in, batches out: sources, tokenizer, split, corpus, feed and n-gram baselines.

Reading order: `document`, `sources/`, `split`, `tokenizer`, `corpus`, `sequences`, `windows`,
`order`, `feed`, `evaluation`, `ngram`.
Nothing is imported here, so that `setpoint.data.config` stays free of numpy and torch.
"""
