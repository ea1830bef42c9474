//! Lists and byte strings from Python, which may be any objects.
//!
//! The length of an object is not trusted. PyO3's `Vec` allocates that much memory at once, so `range(2**60)` or a
//! class with a wrong `__len__` would cause a panic or end the process.

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::errors::out_of_memory;

/// Items of any iterable except a text.
pub(crate) struct Items<T>(pub(crate) Vec<T>);

impl<'a, 'py, T: FromPyObjectOwned<'py>> FromPyObject<'a, 'py> for Items<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Items<T>> {
        if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
            let found = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!("expected a list, found one {found}")));
        }
        let mut items = Vec::new();
        for item in object.try_iter()? {
            let item = item?.extract().map_err(Into::into)?;
            items.try_reserve(1).map_err(out_of_memory)?;
            items.push(item);
        }
        Ok(Items(items))
    }
}

/// The bytes of a `bytes` object; other types are rejected.
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl<'a, 'py> FromPyObject<'a, 'py> for Bytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Bytes> {
        let object = object.cast::<PyBytes>()?;
        let found = object.as_bytes();
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(found.len()).map_err(out_of_memory)?;
        bytes.extend_from_slice(found);
        Ok(Bytes(bytes))
    }
}
