//! Errors of the crate, and panics, as Python exceptions.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};

use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;

pyo3::import_exception!(bytewright.errors, FormatError);
pyo3::import_exception!(bytewright.errors, StorageError);
pyo3::import_exception!(bytewright.errors, TokenizerError);
pyo3::import_exception!(bytewright.errors, UsageError);

/// The Python exception for an error of the crate.
pub(crate) fn to_python(error: bpe::error::Error) -> PyErr {
    use bpe::error::Error;
    let message = error.to_string();
    match error {
        Error::File { .. } => StorageError::new_err(message),
        Error::Table { .. } => FormatError::new_err(message),
        Error::Pattern(_) => UsageError::new_err(message),
        Error::Interrupted => PyKeyboardInterrupt::new_err(message),
        Error::Memory(_) => out_of_memory(()),
        _ => TokenizerError::new_err(message),
    }
}

/// A `MemoryError`. It has no message, because a message needs memory.
pub(crate) fn out_of_memory<E>(_: E) -> PyErr {
    PyMemoryError::new_err(())
}

/// Run the body of a function that Python calls. A panic in it becomes an exception: `MemoryError` if Python had no memory
/// for an object, `RuntimeError` otherwise.
pub(crate) fn guarded<T>(body: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| match message_of(&*panic) {
        message if is_of_memory(message) => Err(out_of_memory(())),
        message => Err(PyRuntimeError::new_err(format!("internal error of the native core: {message}"))),
    })
}

/// Report panics in one line, and those for lack of memory not at all. With `RUST_BACKTRACE=1` the standard library's
/// hook writes a backtrace instead. That needs memory, and without memory it waits forever for its own lock.
pub(crate) fn report_panics_briefly() {
    set_hook(Box::new(|panic| {
        if !is_of_memory(message_of(panic.payload())) {
            eprintln!("{panic}");
        }
    }));
}

fn message_of(panic: &dyn Any) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

/// Whether this is the message with which PyO3 or the crate `numpy` panics if Python has no memory for an object.
fn is_of_memory(message: &str) -> bool {
    message == "PyObject pointer is null" || message.starts_with("Failed to create slice container")
}

/// Translate the error of a result.
pub(crate) trait IntoPython<T> {
    /// Convert the error of the crate to a Python exception.
    fn into_python(self) -> PyResult<T>;
}

impl<T> IntoPython<T> for bpe::error::Result<T> {
    fn into_python(self) -> PyResult<T> {
        self.map_err(to_python)
    }
}
