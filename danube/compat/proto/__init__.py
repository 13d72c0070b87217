"""The messages of the upstream protocol: ``.proto`` files, and the modules generated from them.

The ``_pb2`` modules are generated, and a test compares them with the ``.proto`` files. To generate them, give
``python -m grpc_tools.protoc`` this directory as ``-I``, ``--python_out`` and ``--pyi_out``, and the files.
"""
