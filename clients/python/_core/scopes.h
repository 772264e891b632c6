// Scopes of Python code that are always reset, even if a signal handler raises.
// CPython runs signal handlers between instructions of Python code, never inside a native call, and
// not between the end of a `with` body and the call of a native __exit__. State that native
// __enter__ and __exit__ set and reset is therefore reset whenever it was set.
#pragma once

namespace teletensor::client {

// Returns true inside an Uninterrupted scope of the calling thread: Ctrl-C is then raised at the
// end of the scope. A second Ctrl-C is not postponed.
bool postpone_interrupt();

}  // namespace teletensor::client
