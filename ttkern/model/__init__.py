"""The model: checkpoint, tokenizer, chat template, and the decoder assembled from ops."""
