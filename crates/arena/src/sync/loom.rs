//! Loom's atomics, in which a single access of a single line of source can be made wrong, to show that a model would notice.
//!
//! Loom 0.7 looks for races of a store with the last access of its word alone. A load of the same thread before it, as every
//! compare-and-swap loop has, hides the loads that others made earlier, and with them whole schedules. So each word has a mark beside
//! it that every access stores to first, loads too: of two accesses of one word by two threads both orders are tried. The store is
//! relaxed and never read: it orders nothing.

/// Atomics as std's, with loom's orderings.
pub mod atomic {
    use super::plant;
    pub use std::sync::atomic::Ordering;

    /// A fence.
    #[track_caller]
    pub fn fence(order: Ordering) {
        if !std::thread::panicking() && !plant::here().is_some_and(|fault| fault.skips()) {
            loom::sync::atomic::fence(order);
        }
    }

    macro_rules! atomics {
        ($($name:ident $int:ty;)*) => {$(
            /// Loom's atomic of this size. While a failed model is torn down its accesses do nothing.
            #[derive(Debug)]
            pub struct $name(loom::sync::atomic::$name, loom::sync::atomic::AtomicU8);

            impl $name {
                /// See the module.
                fn mark(&self) {
                    self.1.store(0, Ordering::Relaxed); // ORDERING: Relaxed, see the module.
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
                    plant::value(&fault, self.0.load(order).into()) as $int
                }

                /// Stores.
                #[track_caller]
                pub fn store(&self, value: $int, order: Ordering) {
                    if std::thread::panicking() {
                        return;
                    }
                    self.mark();
                    let fault = plant::here();
                    if fault.is_none_or(|fault| !fault.skips()) {
                        self.0.store(plant::value(&fault, value.into()) as $int, plant::order(&fault, order));
                    }
                }

                /// Stores if `current` is there.
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

                /// As [`Self::compare_exchange`]; in a model it fails only if it must.
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

/// One planted fault: `HEDDLE_PLANT=FILE:LINE:FAULT` makes the access on that line of that file wrong.
pub mod plant {
    use std::panic::Location;
    use std::sync::OnceLock;
    use std::sync::atomic::Ordering;

    /// What goes wrong.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Fault {
        /// `relaxed`: the access orders nothing.
        Relaxed,
        /// `skip`: the store or fence does not happen.
        Skip,
        /// `keep=N`: of the value that is stored or loaded only the bits of N arrive.
        Keep(u64),
    }

    impl Fault {
        pub(super) fn skips(self) -> bool {
            self == Fault::Skip
        }
    }

    /// The variable of the environment that names the fault.
    pub const VARIABLE: &str = "HEDDLE_PLANT";
    /// Printed once the fault was reached.
    pub const REACHED: &str = "the planted fault was reached";

    struct Plant {
        file: String,
        line: u32,
        fault: Fault,
    }

    fn planted() -> &'static Option<Plant> {
        static PLANT: OnceLock<Option<Plant>> = OnceLock::new();
        PLANT.get_or_init(|| {
            let text = std::env::var(VARIABLE).ok()?;
            let parts: Vec<&str> = text.split(':').collect();
            let [file, line, fault] = parts[..] else { panic!("{VARIABLE}={text}: not FILE:LINE:FAULT") };
            let fault = match (fault, fault.strip_prefix("keep=")) {
                ("relaxed", _) => Fault::Relaxed,
                ("skip", _) => Fault::Skip,
                (_, Some(bits)) => Fault::Keep(bits.parse().expect("a number of bits to keep")),
                _ => panic!("{VARIABLE}={text}: relaxed, skip or keep=N"),
            };
            Some(Plant { file: file.into(), line: line.parse().expect("a line"), fault })
        })
    }

    /// The fault planted on the caller's line.
    #[track_caller]
    pub fn here() -> Option<Fault> {
        let plant = planted().as_ref()?;
        let at = Location::caller();
        let hit = at.line() == plant.line && at.file().ends_with(&plant.file);
        if hit {
            static ONCE: std::sync::Once = std::sync::Once::new();
            ONCE.call_once(|| eprintln!("{REACHED}"));
        }
        hit.then_some(plant.fault)
    }

    pub(super) fn order(fault: &Option<Fault>, order: Ordering) -> Ordering {
        match fault {
            // ORDERING: that is the fault.
            Some(Fault::Relaxed) => Ordering::Relaxed,
            _ => order,
        }
    }

    pub(super) fn value(fault: &Option<Fault>, value: u64) -> u64 {
        match fault {
            Some(Fault::Keep(bits)) => value & bits,
            _ => value,
        }
    }
}
