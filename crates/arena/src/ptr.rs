//! Typed offsets into an arena.

use std::fmt;
use std::marker::PhantomData;

use crate::shared::{Shared, Zeroed};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Offset of a `T` (or of the first of several) from the start of its arena, in bytes. 0 is [`Ptr::NULL`].
#[repr(transparent)]
pub struct Ptr<T>(u64, PhantomData<fn() -> T>);

impl<T> Ptr<T> {
    /// Points to nothing.
    pub const NULL: Self = Ptr(0, PhantomData);

    /// The pointer whose [`raw`](Self::raw) is `raw`. Any other number leads to arbitrary contents, never to
    /// memory outside the arena.
    #[inline]
    pub const fn from_raw(raw: u64) -> Self {
        Ptr(raw, PhantomData)
    }

    /// The offset, in bytes.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Returns true if this is [`NULL`](Self::NULL).
    #[inline]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The `index`th element after this one, as in a slice.
    #[inline]
    pub const fn add(self, index: usize) -> Self {
        Ptr(self.0 + (index * size_of::<T>()) as u64, PhantomData)
    }
}

impl<T> Clone for Ptr<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Ptr<T> {}
impl<T> PartialEq for Ptr<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<T> Eq for Ptr<T> {}
impl<T> fmt::Debug for Ptr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ptr({:#x})", self.0)
    }
}

// SAFETY: an integer; the machine does not use it as a pointer.
unsafe impl<T: 'static> Shared for Ptr<T> {}
// SAFETY: NULL is 0.
unsafe impl<T: 'static> Zeroed for Ptr<T> {
    fn zeroed() -> Self {
        Ptr::NULL
    }
}

/// A [`Ptr`] that many threads may change. The caller chooses orderings; they mean the same as on an
/// `AtomicU64`.
#[repr(transparent)]
pub struct AtomicPtr<T>(AtomicU64, PhantomData<fn() -> T>);

impl<T> AtomicPtr<T> {
    /// Holds `ptr`.
    pub fn new(ptr: Ptr<T>) -> Self {
        AtomicPtr(AtomicU64::new(ptr.raw()), PhantomData)
    }

    /// Loads.
    #[inline]
    pub fn load(&self, order: Ordering) -> Ptr<T> {
        Ptr::from_raw(self.0.load(order))
    }

    /// Stores.
    #[inline]
    pub fn store(&self, ptr: Ptr<T>, order: Ordering) {
        self.0.store(ptr.raw(), order);
    }

    /// Stores `ptr` and returns the old pointer.
    #[inline]
    pub fn swap(&self, ptr: Ptr<T>, order: Ordering) -> Ptr<T> {
        Ptr::from_raw(self.0.swap(ptr.raw(), order))
    }

    /// Stores `new` if the pointer is `current`; returns the old pointer in either case.
    #[inline]
    pub fn compare_exchange(
        &self,
        current: Ptr<T>,
        new: Ptr<T>,
        success: Ordering,
        failure: Ordering,
    ) -> Result<Ptr<T>, Ptr<T>> {
        match self.0.compare_exchange(current.raw(), new.raw(), success, failure) {
            Ok(was) => Ok(Ptr::from_raw(was)),
            Err(was) => Err(Ptr::from_raw(was)),
        }
    }
}

// SAFETY: an atomic integer; the machine does not use it as a pointer.
unsafe impl<T: 'static> Shared for AtomicPtr<T> {}
// SAFETY: NULL is 0.
unsafe impl<T: 'static> Zeroed for AtomicPtr<T> {
    fn zeroed() -> Self {
        AtomicPtr::new(Ptr::NULL)
    }
}
