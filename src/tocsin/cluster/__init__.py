"""The data cluster: catalog, channel SQL, feed log, scheduler, result store. Only `cluster.spark` imports pyspark."""
