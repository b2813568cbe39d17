"""tiktoken in place of `tokenizers`, where the two can only give the same ids."""
