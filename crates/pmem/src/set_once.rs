//! A value that is set once, without a lock: a fork in the middle leaves the child nothing to wait for.
//!
//! Invariants  I1  a pointer that was set stays, and points to its value, until the drop.
//! Orderings   O1  `set` (Release) pairs with the Acquire in `get`.

use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// As [`std::sync::OnceLock`], in which a forked child may find a lock that nobody opens.
pub(crate) struct SetOnce<T> {
    value: AtomicPtr<T>,
    owned: PhantomData<T>,
}

impl<T> Default for SetOnce<T> {
    fn default() -> SetOnce<T> {
        SetOnce { value: AtomicPtr::new(null_mut()), owned: PhantomData }
    }
}

impl<T: Send + Sync> SetOnce<T> {
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // ORDERING: Acquire, O1.
        // SAFETY: null, or a value that lives as long as `self` (I1).
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the value, or gives it back if there is one.
    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        let value = Box::into_raw(Box::new(value));
        // ORDERING: Release, O1; Relaxed, a value found here is not read.
        match self.value.compare_exchange(null_mut(), value, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            // SAFETY: made above, and not published.
            Err(_) => Err(*unsafe { Box::from_raw(value) }),
        }
    }
}

impl<T> Drop for SetOnce<T> {
    fn drop(&mut self) {
        let value = std::mem::replace(self.value.get_mut(), ptr::null_mut());
        if !value.is_null() {
            // SAFETY: made by `set`; no reference is left.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

impl<T: Debug + Send + Sync> Debug for SetOnce<T> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.get().fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_first_value_stays_and_the_second_comes_back() {
        let (value, once) = (Arc::new(1), SetOnce::default());
        assert_eq!((once.get(), once.set(value.clone())), (None, Ok(())));
        assert_eq!(once.set(Arc::new(2)), Err(Arc::new(2)));
        assert_eq!((once.get(), Arc::strong_count(&value)), (Some(&value), 2));
        drop(once);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
