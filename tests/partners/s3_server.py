"""Serves S3 with moto on a free port of this machine, and prints how to reach it. Runs in its own environment.

There are two buckets: the user whose key is printed may do everything in the one called apood, and nothing in the one
called closed. Requests of others are refused.
"""

import json
import time
import urllib.request

import boto3
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
address = "http://{}:{}".format(*server.get_host_and_port())
options = {
    "endpoint_url": address, "aws_access_key_id": "root", "aws_secret_access_key": "root", "region_name": "us-east-1",
}  # fmt: skip
s3, iam = boto3.client("s3", **options), boto3.client("iam", **options)
for bucket in ("apood", "closed"):
    s3.create_bucket(Bucket=bucket)
iam.create_user(UserName="tester")
resources = [f"arn:aws:s3:::{name}" for name in ("apood", "apood/*", "missing-bucket", "missing-bucket/*")]
allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": resources}
policy = {"Version": "2012-10-17", "Statement": [allowed]}
iam.put_user_policy(UserName="tester", PolicyName="own", PolicyDocument=json.dumps(policy))
key = iam.create_access_key(UserName="tester")["AccessKey"]
plain = {"Content-Type": "text/plain"}
urllib.request.urlopen(urllib.request.Request(f"{address}/moto-api/reset-auth", b"0", plain, method="POST"))
print(
    json.dumps(
        {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }
    ),
    flush=True,
)
while True:
    time.sleep(60)
