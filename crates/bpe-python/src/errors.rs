//! Errors of the crate as exceptions of `bytewright.errors`.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

pyo3::import_exception!(bytewright.errors, StorageError);
pyo3::import_exception!(bytewright.errors, TokenizerError);
pyo3::import_exception!(bytewright.errors, UsageError);

/// The exception that says what `error` says.
pub(crate) fn to_python(error: bpe::error::Error) -> PyErr {
    use bpe::error::Error;
    let message = error.to_string();
    match error {
        Error::File { .. } => StorageError::new_err(message),
        Error::Pattern(_) => UsageError::new_err(message),
        Error::Interrupted => PyKeyboardInterrupt::new_err(message),
        _ => TokenizerError::new_err(message),
    }
}

/// Translate the error of a result.
pub(crate) trait IntoPython<T> {
    /// The same result, with a Python exception in place of the crate's error.
    fn into_python(self) -> PyResult<T>;
}

impl<T> IntoPython<T> for bpe::error::Result<T> {
    fn into_python(self) -> PyResult<T> {
        self.map_err(to_python)
    }
}
