"""Exceptions of the package. A message is one sentence: what was wanted, what was got, what to do."""


class Error(RuntimeError):
    """Base of every exception the package raises on purpose."""


class InvalidArgument(Error, ValueError):
    """The caller's input breaks a stated rule: a problem, a shape, a value, an option."""


class InvalidDType(InvalidArgument, TypeError):
    """A tensor or an object has a type that is not taken there."""


class CudaError(Error):
    """A CUDA call failed, or this build or machine has no usable device."""


class FabricError(Error):
    """The ranks cannot share memory, or they disagree about what they are building together."""


class Timeout(Error, TimeoutError):
    """A wait passed its deadline, or the layer's heap is dead after such a wait."""


class OutOfMemory(Error, MemoryError):
    """There is no memory for a heap or a copy."""


class ForwardOnly(Error, NotImplementedError):
    """A gradient was asked for: layers run forward only."""
