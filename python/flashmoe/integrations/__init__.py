"""flashmoe inside other libraries' models."""
