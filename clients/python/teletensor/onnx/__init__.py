"""ONNX models on the daemon: `load` reads an .onnx file and returns a function; `OnnxModel.save` writes the
model as a program for `tt.jit.load` and the C++ client."""

from ._file import OnnxError
from ._model import OnnxModel, load

__all__ = ["OnnxError", "OnnxModel", "load"]
