"""The messages of the upstream protocol: ``.proto`` files, and what the protocol buffer compiler makes of them.

The ``_pb2`` modules are generated, and a test sees that they are what the ``.proto`` files say. To make them again,
give ``python -m grpc_tools.protoc`` this directory as ``-I``, ``--python_out`` and ``--pyi_out``, and the files.
"""
