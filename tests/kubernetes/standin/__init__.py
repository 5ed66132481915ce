"""A stand-in for a Kubernetes cluster: an API on the loopback whose Pods are processes of this machine.

It knows what the runtime uses, in the words of a real cluster: `test_recordings.py` compares its answers with what a
real cluster answered to the same requests.
"""
