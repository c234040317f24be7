//! The shared objects that the dynamic loader has loaded, read from its own tables. Of the loader's functions,
//! some of which this library replaces, it uses only `dladdr1`. It uses no memory from the heap.

use libc::{Dl_info, c_char, c_int, c_void};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// A shared object: `struct link_map` of link.h.
#[repr(C)]
pub struct SharedObject {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *const SharedObject,
}

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// DT_STRTAB of elf.h.
const DT_STRTAB: i64 = 5;
/// DT_SYMTAB.
const DT_SYMTAB: i64 = 6;
/// DT_VERSYM.
const DT_VERSYM: i64 = 0x6fff_fff0;
/// DT_GNU_HASH.
const DT_GNU_HASH: i64 = 0x6fff_fef5;
/// VERSYM_HIDDEN: the symbol's version is not the default one, which a newly linked program gets.
const VERSYM_HIDDEN: u16 = 0x8000;

unsafe extern "C" {
    fn dladdr1(address: *const c_void, info: *mut Dl_info, object: *mut *mut c_void, what: c_int) -> c_int;
}

/// The object that contains this address.
pub fn object_of(address: usize) -> Option<&'static SharedObject> {
    const LINK_MAP: c_int = 2;
    let (mut info, mut object) = (MaybeUninit::<Dl_info>::uninit(), null_mut());
    let address = std::ptr::without_provenance(address);
    // SAFETY: live locals.
    let found = unsafe { dladdr1(address, info.as_mut_ptr(), &mut object, LINK_MAP) } != 0;
    // SAFETY: null, or the loader's; an object whose code runs, or whose function was just found, is not
    // unloaded.
    if found { unsafe { object.cast::<SharedObject>().as_ref() } } else { None }
}

/// This library.
pub fn ours() -> Option<&'static SharedObject> {
    static KEPT: AtomicPtr<SharedObject> = AtomicPtr::new(null_mut());
    kept(&KEPT, object_of as *const () as usize)
}

/// The C library.
pub fn c_library() -> Option<&'static SharedObject> {
    static KEPT: AtomicPtr<SharedObject> = AtomicPtr::new(null_mut());
    kept(&KEPT, libc::gnu_get_libc_version as *const () as usize)
}

fn kept(kept: &AtomicPtr<SharedObject>, address: usize) -> Option<&'static SharedObject> {
    // ORDERING: Relaxed: a thread that finds null searches again, with the same result.
    let known = kept.load(Relaxed).cast_const();
    // SAFETY: null, or an object that is never unloaded.
    let known = unsafe { known.as_ref() }.or_else(|| object_of(address));
    kept.store(known.map_or(null_mut(), |known| std::ptr::from_ref(known).cast_mut()), Relaxed);
    known
}

impl SharedObject {
    /// The objects after this one, in the loader's search order.
    pub fn later(&self) -> impl Iterator<Item = &'static SharedObject> {
        let mut at = self.next;
        std::iter::from_fn(move || {
            // SAFETY: null, or the loader's.
            let object = unsafe { at.as_ref() }?;
            at = object.next;
            Some(object)
        })
    }

    /// Address of a function that this object defines; of several versions the default one.
    pub fn function(&self, name: &CStr) -> Option<usize> {
        let strings = self.table(DT_STRTAB)?.cast::<c_char>();
        let symbols = self.table(DT_SYMTAB)?.cast::<Symbol>();
        let versions = self.table(DT_VERSYM).map(|at| at.cast::<u16>());
        let mut found = None;
        self.each_of_hash(hash(name), |at| {
            // SAFETY: the loader's tables contain every entry that the hash table names.
            let (symbol, version) = unsafe { (&*symbols.add(at), versions.map_or(0, |all| *all.add(at))) };
            // SAFETY: as above.
            let is_it =
                symbol.section != 0 && unsafe { CStr::from_ptr(strings.add(symbol.name as usize)) } == name;
            if is_it && (found.is_none() || version & VERSYM_HIDDEN == 0) {
                found = Some(self.base + symbol.value as usize);
            }
        });
        found
    }

    /// Calls `look` with the index of each symbol whose name has this hash; the lowest bit is not compared.
    fn each_of_hash(&self, hash: u32, mut look: impl FnMut(usize)) {
        let Some(table) = self.table(DT_GNU_HASH).map(|at| at.cast::<u32>()) else { return };
        // SAFETY: the layout of a GNU hash table: a head of four words, a Bloom filter, the first symbol of each
        // bucket, and the hash of each symbol from `first` on, whose lowest bit ends its bucket.
        unsafe {
            let (buckets, first, filter_words) = (*table, *table.add(1), *table.add(2) as usize);
            let bucket = table.add(4 + 2 * filter_words);
            let chain = bucket.add(buckets as usize);
            if buckets == 0 {
                return;
            }
            let mut at = *bucket.add((hash % buckets) as usize);
            while at >= first {
                let here = *chain.add((at - first) as usize);
                if here | 1 == hash | 1 {
                    look(at as usize);
                }
                if here & 1 != 0 {
                    return;
                }
                at += 1;
            }
        }
    }

    fn table(&self, tag: i64) -> Option<*const c_void> {
        let mut at = self.dynamic;
        // SAFETY: null, or a list of the object that ends with a zero.
        while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| entry.tag != 0) {
            if entry.tag == tag {
                // The loader has replaced offsets by addresses, except in objects that it does not write to.
                let value = if entry.value < self.base { entry.value + self.base } else { entry.value };
                return Some(std::ptr::with_exposed_provenance(value));
            }
            // SAFETY: the end was not reached.
            at = unsafe { at.add(1) };
        }
        None
    }
}

/// The hash function of GNU hash tables.
fn hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

/// The function that this library's function of that name replaces: the C library's if it has one, else that of
/// the next object in search order that has one.
pub fn next_definition(name: &CStr, kept: &AtomicPtr<c_void>) -> *mut c_void {
    // ORDERING: Relaxed: a thread that finds null searches again, with the same result.
    let mut found = kept.load(Relaxed);
    if found.is_null() {
        let next = || ours()?.later().find_map(|object| object.function(name));
        let address = c_library().and_then(|object| object.function(name)).or_else(next);
        found = std::ptr::with_exposed_provenance_mut(address.unwrap_or(0));
        kept.store(found, Relaxed);
    }
    found
}
