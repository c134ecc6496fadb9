"""Serve compressed language models: embed, classify, rerank and answer."""

__version__ = "0.1.0"
