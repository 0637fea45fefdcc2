"""The proxy: a guard in front of a server that speaks the OpenAI protocol."""
