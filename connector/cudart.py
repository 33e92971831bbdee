"""Calls of the CUDA runtime that torch does not offer whole: pinning memory that is not torch's, and being left alone while vLLM
captures graphs. Through ctypes, which releases the interpreter lock, on the library that torch has loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from pegaflow.connector.options import StartRefused

READ_ONLY = 0x08  # cudaHostRegisterReadOnly
RELAXED = 2  # cudaStreamCaptureModeRelaxed


class CudaError(RuntimeError):
    """A call of the runtime failed. `code` is CUDA's number."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} failed with CUDA error {code}")
        self.code = code


def host_register(address: int, length: int, writable: bool) -> None:
    """Pins [address, address + length), so that the device copies it without staging. Raises CudaError."""
    _check("cudaHostRegister", ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_uint(0 if writable else READ_ONLY))


def host_unregister(address: int) -> None:
    """Undoes one `host_register`; nothing may be copying there any more. Raises CudaError."""
    _check("cudaHostUnregister", ctypes.c_void_p(address))


@contextmanager
def uncaptured() -> Iterator[None]:
    """For calls of this thread that CUDA forbids while any other thread captures a graph (allocations, pinning): in here they are
    allowed. Otherwise they would break that capture, and with it the start of vLLM."""
    mode = ctypes.c_int(RELAXED)
    _check("cudaThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        _check("cudaThreadExchangeStreamCaptureMode", ctypes.byref(mode))


def _check(call: str, *arguments: object) -> None:
    code = getattr(_runtime(), call)(*arguments)
    if code:
        _runtime().cudaGetLastError()  # else the next launch of this thread would report it as its own
        raise CudaError(call, code)


def require_runtime() -> None:
    """Raises StartRefused where the library cannot be reached: every copy would fail later."""
    try:
        _runtime()
    except OSError as error:
        raise StartRefused("cuda_runtime", f"torch is built for CUDA {torch.version.cuda}, but its runtime: {error}") from None


@cache
def _runtime() -> ctypes.CDLL:
    torch.cuda.init()
    return ctypes.CDLL(f"libcudart.so.{(torch.version.cuda or '').partition('.')[0]}")
