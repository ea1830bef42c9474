//! Text from Python: `str` or `bytes`, without a copy if Python already stores UTF-8.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::errors::TokenizerError;

/// The UTF-8 bytes of a `str`, or the bytes of a `bytes`.
pub(crate) fn bytes_of<'a>(text: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    if let Ok(text) = text.cast::<PyString>() {
        return text.to_str().map(str::as_bytes).map_err(|error| lone_surrogate(text, error));
    }
    if let Ok(bytes) = text.cast::<PyBytes>() {
        return Ok(bytes.as_bytes());
    }
    let found = text.get_type().name()?;
    Err(PyTypeError::new_err(format!("expected text as str or bytes, found {found}")))
}

/// One text of a list.
pub(crate) struct Text<'py>(pub(crate) Bound<'py, PyAny>);

impl<'a, 'py> FromPyObject<'a, 'py> for Text<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Text<'py>> {
        bytes_of(&object)?;
        Ok(Text(object.to_owned()))
    }
}

#[cold]
fn lone_surrogate(text: &Bound<'_, PyString>, error: PyErr) -> PyErr {
    let start = error.value(text.py()).getattr("start").and_then(|start| start.extract::<usize>());
    match start {
        Ok(position) => TokenizerError::new_err(format!(
            "the text has a lone surrogate at character {position}, which UTF-8 cannot represent; \
             decode the text again or replace the character"
        )),
        Err(_) => error,
    }
}
