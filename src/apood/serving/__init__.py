"""Detectors in use: the guard before a generator, the HTTP service, and the proxy before a model server."""
