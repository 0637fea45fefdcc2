"""Serves Google's cloud storage with an emulator on a free port of this machine, and prints how to reach it.

There is one bucket, apood. Runs in its own environment.
"""

import json
import socket
import time

from gcp_storage_emulator.server import create_server

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = create_server("127.0.0.1", port, in_memory=True, default_bucket="apood")
server.start()
print(json.dumps({"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}), flush=True)
while True:
    time.sleep(60)
