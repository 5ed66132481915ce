"""Parts of the runtime ``kubernetes``: sessions in Pods of a cluster."""
