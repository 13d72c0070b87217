"""The messages of etcd's gRPC API: ``etcd.proto``, and the module generated from it.

To generate ``etcd_pb2``, give ``python -m grpc_tools.protoc`` this directory as ``-I``, ``--python_out`` and
``--pyi_out``, and the file. A test compares the two.
"""
