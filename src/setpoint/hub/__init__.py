"""Files on other machines: the Hugging Face hub, and URLs that fsspec opens."""
