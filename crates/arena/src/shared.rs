//! Types that may live in an arena.

use crate::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// A type that may live in an arena and be read by many threads of many processes.
///
/// Use [`shared!`](crate::shared!) rather than implementing this by hand: it checks every field.
///
/// # Safety
/// The type holds no pointer and no reference, needs no `Drop`, means the same at any address, is valid for every bit pattern,
/// and has an alignment of at most 64. Fields that are not atomic are written only before the value is published.
pub unsafe trait Shared: Sized + Send + Sync + 'static {}

/// A [`Shared`] type for which all bytes zero is a valid and useful value.
///
/// # Safety
/// Outside loom, `zeroed()` is the value whose bytes are all zero. (Loom's atomics are objects that must be constructed. So
/// under loom, zeroed memory is never used as a value: `zeroed()` makes each one.)
pub unsafe trait Zeroed: Shared {
    /// The zero value.
    fn zeroed() -> Self;
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        // SAFETY: a plain integer: no pointer, no Drop, any bit pattern.
        unsafe impl Shared for $int {}
        // SAFETY: 0 is all bytes zero.
        unsafe impl Zeroed for $int { fn zeroed() -> Self { 0 } }
    )*};
}
macro_rules! atomics {
    ($($atomic:ty),*) => {$(
        // SAFETY: an atomic integer: no pointer, no Drop, any bit pattern.
        unsafe impl Shared for $atomic {}
        // SAFETY: an atomic integer has its integer's representation.
        unsafe impl Zeroed for $atomic { fn zeroed() -> Self { <$atomic>::new(0) } }
    )*};
}
integers!(u8, u16, u32, u64, i32, i64);
atomics!(AtomicU8, AtomicU16, AtomicU32, AtomicU64);

// SAFETY: as its elements.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}
// SAFETY: as its elements, without padding between them.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] {
    fn zeroed() -> Self {
        std::array::from_fn(|_| T::zeroed())
    }
}

/// Declares a struct that may live in an arena: `repr(C)`, [`Shared`] and [`Zeroed`], every field checked to be both.
#[macro_export]
macro_rules! shared {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$fmeta:meta])* $fvis:vis $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        $vis struct $name { $($(#[$fmeta])* $fvis $field: $ty),* }

        // SAFETY: every field is Shared (the bounds fail to compile otherwise), the assertion below excludes Drop and over-alignment.
        unsafe impl $crate::Shared for $name where $($ty: $crate::Shared),* {}
        // SAFETY: every field is Zeroed; padding is never read.
        unsafe impl $crate::Zeroed for $name where $($ty: $crate::Zeroed),* {
            fn zeroed() -> Self {
                Self { $($field: <$ty as $crate::Zeroed>::zeroed()),* }
            }
        }
        const _: () = assert!(!::core::mem::needs_drop::<$name>() && ::core::mem::align_of::<$name>() <= 64);
    };
}
