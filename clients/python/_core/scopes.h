// Scopes of Python code that a signal cannot leave halfway.
//
// CPython runs signal handlers between instructions of Python code, never inside a native call, and
// not between the end of a `with` body and the call of a native __exit__. What is set and reset by
// native
// __enter__ and __exit__ is therefore reset whenever it was set, also where a handler raises.
#pragma once

namespace teletensor::client {

// True inside an Uninterrupted scope of the calling thread: Ctrl-C is then raised at the scope's
// end. A second one is not put off.
bool postpone_interrupt();

}  // namespace teletensor::client
