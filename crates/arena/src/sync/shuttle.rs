//! Atomics with the size and bytes of std's. Before each access shuttle may run another thread. A fault can be
//! planted in an access (`plant`).

use shuttle::sync::atomic::AtomicBool;

/// Another thread may run here.
#[inline]
pub(super) fn step() {
    if !std::thread::panicking() && !death::real() {
        // ORDERING: SeqCst, the only order shuttle has. Any access to one of shuttle's own atomics lets
        // another thread run.
        AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
    }
}

/// Processes that end between two stores, for rigs that fork real processes and let shuttle schedule nothing.
pub mod death {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    static REAL: AtomicBool = AtomicBool::new(false);
    static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);
    /// The exit code of a process that ended on purpose.
    pub const CODE: i32 = 99;

    /// From now on this program consists of real processes with one thread each: the kernel says which are
    /// alive, and shuttle schedules none.
    pub fn of_real_processes() {
        REAL.store(true, Relaxed); // ORDERING: Relaxed, each process has one thread.
    }

    #[inline]
    pub(crate) fn real() -> bool {
        REAL.load(Relaxed) // ORDERING: Relaxed, stored before there are threads.
    }

    /// Ends this process before the store that follows `stores` more ones.
    pub fn after(stores: u64) {
        LEFT.store(stores, Relaxed); // ORDERING: Relaxed, the process has one thread.
    }

    /// Called before each store to memory that other processes see.
    #[inline]
    pub fn before_store() {
        if !real() {
            return super::step();
        }
        // ORDERING: Relaxed, the process has one thread.
        if LEFT.fetch_sub(1, Relaxed) == 0 {
            if std::env::var_os("HEDDLE_DEATHS_TRACE").is_some() {
                eprintln!("dies in\n{}", std::backtrace::Backtrace::force_capture());
            }
            // SAFETY: ends this process, at once.
            unsafe { libc::_exit(CODE) };
        }
    }
}

/// Atomics as std's.
pub mod atomic {
    use super::super::plant;
    use super::{death::before_store, step};
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
                    plant::masked(&plant::here(), self.0.load(order).into()) as $int
                }

                /// Stores.
                #[track_caller]
                pub fn store(&self, value: $int, order: Ordering) {
                    before_store();
                    let fault = plant::here();
                    if plant::happens(&fault) {
                        self.0.store(plant::masked(&fault, value.into()) as $int, order);
                    }
                }

                /// Stores `new` if the word is `current`.
                pub fn compare_exchange(
                    &self,
                    current: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    before_store();
                    self.0.compare_exchange(current, new, success, failure)
                }

                /// As [`Self::compare_exchange`]; it never fails spuriously here.
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
                /// The current value, if `f` returned `None` for it.
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
                    before_store();
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
