//! std's atomics, before each access of which shuttle may let another thread run, and which can be made wrong (`plant`). Same size
//! and bytes as std's.

use shuttle::sync::atomic::AtomicBool;

/// Another thread may run here.
#[inline]
pub(super) fn step() {
    if !std::thread::panicking() {
        // ORDERING: SeqCst, the only order shuttle knows. An access to one of shuttle's own atomics is such a place.
        AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
    }
}

/// Atomics as std's.
pub mod atomic {
    use super::super::plant;
    use super::step;
    use std::sync::atomic as real;
    pub use std::sync::atomic::Ordering;

    /// A fence: in a sequentially consistent world, nothing.
    pub fn fence(_order: Ordering) {}

    macro_rules! atomics {
        ($($name:ident $int:ty;)*) => {$(
            /// std's atomic of this size.
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub struct $name(real::$name);

            impl $name {
                /// Holds `value`.
                pub const fn new(value: $int) -> Self {
                    $name(real::$name::new(value))
                }

                /// Loads.
                #[track_caller]
                pub fn load(&self, order: Ordering) -> $int {
                    step();
                    plant::value(&plant::here(), self.0.load(order).into()) as $int
                }

                /// Stores.
                #[track_caller]
                pub fn store(&self, value: $int, order: Ordering) {
                    step();
                    let fault = plant::here();
                    if plant::happens(&fault) {
                        self.0.store(plant::value(&fault, value.into()) as $int, order);
                    }
                }

                /// Stores if `current` is there.
                pub fn compare_exchange(
                    &self,
                    current: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    step();
                    self.0.compare_exchange(current, new, success, failure)
                }

                /// As [`Self::compare_exchange`]; here it fails only if it must.
                pub fn compare_exchange_weak(
                    &self,
                    current: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    self.compare_exchange(current, new, success, failure)
                }

                /// As std's.
                ///
                /// # Errors
                /// The value, if `f` refused it.
                #[track_caller]
                pub fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    mut f: impl FnMut($int) -> Option<$int>,
                ) -> Result<$int, $int> {
                    let mut seen = self.load(fetch);
                    while let Some(next) = f(seen) {
                        match self.compare_exchange(seen, next, set, fetch) {
                            Ok(was) => return Ok(was),
                            Err(now) => seen = now,
                        }
                    }
                    Err(seen)
                }
            }

            atomics! { @rmw $name $int: swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min }
        )*};
        (@rmw $name:ident $int:ty: $($op:ident)*) => {$(
            impl $name {
                /// As std's.
                #[track_caller]
                pub fn $op(&self, value: $int, order: Ordering) -> $int {
                    step();
                    if !plant::happens(&plant::here()) {
                        return self.0.load(Ordering::SeqCst); // ORDERING: SeqCst, the only order shuttle knows.
                    }
                    self.0.$op(value, order)
                }
            }
        )*};
    }

    atomics! {
        AtomicU8 u8;
        AtomicU16 u16;
        AtomicU32 u32;
        AtomicU64 u64;
    }
}
