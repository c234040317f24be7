//! Loom's atomics, in which an access on a single source line can be made wrong, to show that a model detects
//! it.
//!
//! Loom 0.7 checks a store for races only with the last access of its word. A load by the same thread before
//! it, as in every compare-and-swap loop, hides earlier loads of other threads, and with them whole
//! schedules. So each word has a mark beside it. Every access, also a load, first stores to the mark, so both
//! orders of any two accesses of a word are tried. The store is relaxed and never read: it orders nothing.

/// `HEDDLE_LOOM_MARKS=0` switches the marks off: fewer schedules, for models that would take too long in a
/// quick run.
fn marks() -> bool {
    static MARKS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *MARKS.get_or_init(|| std::env::var_os("HEDDLE_LOOM_MARKS").is_none_or(|value| value != "0"))
}

/// Loom's atomics behind std's interface, with planted faults and marks.
pub mod atomic {
    use super::super::plant;
    pub use std::sync::atomic::Ordering;

    /// A fence.
    #[track_caller]
    pub fn fence(order: Ordering) {
        if !std::thread::panicking() && plant::happens(&plant::here()) {
            loom::sync::atomic::fence(order);
        }
    }

    macro_rules! atomics {
        ($($name:ident $int:ty;)*) => {$(
            /// Loom's atomic of this size. While a failed model is torn down its accesses do nothing.
            #[derive(Debug)]
            pub struct $name(loom::sync::atomic::$name, loom::sync::atomic::AtomicU8);

            impl $name {
                /// Stores to the mark.
                fn mark(&self) {
                    if super::marks() {
                        self.1.store(0, Ordering::Relaxed); // ORDERING: Relaxed, see the module.
                    }
                }

                /// Holds `value`.
                #[track_caller]
                pub fn new(value: $int) -> Self {
                    $name(loom::sync::atomic::$name::new(value), loom::sync::atomic::AtomicU8::new(0))
                }

                /// Loads.
                #[track_caller]
                pub fn load(&self, order: Ordering) -> $int {
                    if std::thread::panicking() {
                        return 0;
                    }
                    self.mark();
                    let fault = plant::here();
                    let order = plant::order(&fault, order);
                    plant::masked(&fault, self.0.load(order).into()) as $int
                }

                /// Stores.
                #[track_caller]
                pub fn store(&self, value: $int, order: Ordering) {
                    if std::thread::panicking() {
                        return;
                    }
                    self.mark();
                    let fault = plant::here();
                    if plant::happens(&fault) {
                        self.0.store(plant::masked(&fault, value.into()) as $int, plant::order(&fault, order));
                    }
                }

                /// Stores `new` if the word is `current`.
                #[track_caller]
                pub fn compare_exchange(
                    &self,
                    current: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    if std::thread::panicking() {
                        return Ok(current);
                    }
                    self.mark();
                    let fault = plant::here();
                    let (success, failure) = (plant::order(&fault, success), plant::order(&fault, failure));
                    self.0.compare_exchange(current, new, success, failure)
                }

                /// As [`Self::compare_exchange`]; in a model it never fails spuriously.
                #[track_caller]
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
                    if std::thread::panicking() {
                        return 0;
                    }
                    self.mark();
                    let fault = plant::here();
                    if !plant::happens(&fault) {
                        return self.0.load(Ordering::Relaxed); // ORDERING: Relaxed, it is a fault.
                    }
                    self.0.$op(value, plant::order(&fault, order))
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
