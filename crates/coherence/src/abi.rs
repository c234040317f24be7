//! QEMU's plug-in interface, as much of it as is used. No package carries its header; the functions are few and have kept their form
//! from version 1 (QEMU 4.2) on.
//!
//! They are looked up in the program that loads the library, not linked: so the library's tests need no QEMU.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// The version of the interface that this library says it was made for. QEMU up to 8 wants 1 at most, 9 and later 2 at least.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = match option_env!("HEDDLE_QEMU_PLUGIN_API") {
    Some(text) if matches!(text.as_bytes(), b"2") => 2,
    _ => 1,
};

/// What a plug-in is registered as.
pub type Id = u64;
/// Tells whether an access is a store and how large it is.
pub type MemInfo = u32;
/// A block of translated code, and one instruction in it.
pub type Block = c_void;
/// As above.
pub type Insn = c_void;

/// `qemu_plugin_vcpu_mem_cb_t`
pub type OnAccess = extern "C" fn(vcpu: c_uint, info: MemInfo, address: u64, site: *mut c_void);
/// `qemu_plugin_vcpu_tb_trans_cb_t`
pub type OnTranslate = extern "C" fn(Id, *mut Block);
/// `qemu_plugin_vcpu_syscall_cb_t`
pub type OnSyscall = extern "C" fn(Id, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
/// `qemu_plugin_vcpu_syscall_ret_cb_t`
pub type OnReturn = extern "C" fn(Id, c_uint, i64, i64);
/// `qemu_plugin_udata_cb_t`
pub type OnExit = extern "C" fn(Id, *mut c_void);

/// `QEMU_PLUGIN_CB_NO_REGS`
pub const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_MEM_RW`
pub const LOADS_AND_STORES: c_int = 3;

/// The functions.
#[derive(Clone, Copy)]
pub struct Qemu {
    pub on_translate: unsafe extern "C" fn(Id, OnTranslate),
    pub on_syscall: unsafe extern "C" fn(Id, OnSyscall),
    pub on_return: unsafe extern "C" fn(Id, OnReturn),
    pub on_exit: unsafe extern "C" fn(Id, OnExit, *mut c_void),
    pub on_access: unsafe extern "C" fn(*mut Insn, OnAccess, c_int, c_int, *mut c_void),
    pub insns: unsafe extern "C" fn(*const Block) -> usize,
    pub insn: unsafe extern "C" fn(*const Block, usize) -> *mut Insn,
    pub insn_address: unsafe extern "C" fn(*const Insn) -> u64,
    pub is_store: unsafe extern "C" fn(MemInfo) -> bool,
    pub size_shift: unsafe extern "C" fn(MemInfo) -> c_uint,
}

impl Qemu {
    /// Finds them in this process.
    pub fn find() -> Result<Qemu, String> {
        // SAFETY: each symbol is transmuted to the type that QEMU's interface gives it.
        #[allow(clippy::missing_transmute_annotations, reason = "the fields say the types")]
        unsafe {
            Ok(Qemu {
                on_translate: std::mem::transmute::<*mut c_void, _>(symbol(
                    c"qemu_plugin_register_vcpu_tb_trans_cb",
                )?),
                on_syscall: std::mem::transmute::<*mut c_void, _>(symbol(
                    c"qemu_plugin_register_vcpu_syscall_cb",
                )?),
                on_return: std::mem::transmute::<*mut c_void, _>(symbol(
                    c"qemu_plugin_register_vcpu_syscall_ret_cb",
                )?),
                on_exit: std::mem::transmute::<*mut c_void, _>(symbol(c"qemu_plugin_register_atexit_cb")?),
                on_access: std::mem::transmute::<*mut c_void, _>(symbol(
                    c"qemu_plugin_register_vcpu_mem_cb",
                )?),
                insns: std::mem::transmute::<*mut c_void, _>(symbol(c"qemu_plugin_tb_n_insns")?),
                insn: std::mem::transmute::<*mut c_void, _>(symbol(c"qemu_plugin_tb_get_insn")?),
                insn_address: std::mem::transmute::<*mut c_void, _>(symbol(c"qemu_plugin_insn_vaddr")?),
                is_store: std::mem::transmute::<*mut c_void, _>(symbol(c"qemu_plugin_mem_is_store")?),
                size_shift: std::mem::transmute::<*mut c_void, _>(symbol(c"qemu_plugin_mem_size_shift")?),
            })
        }
    }
}

fn symbol(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("this QEMU has no {}: it was built without plug-ins", name.to_string_lossy()));
    }
    Ok(found)
}

/// The options after the library's name on QEMU's command line.
///
/// # Safety
/// As QEMU calls: `argc` strings at `argv`.
pub unsafe fn options(argc: c_int, argv: *const *const c_char) -> Vec<String> {
    // SAFETY: the caller's promise.
    (0..argc as usize)
        .map(|i| unsafe { CStr::from_ptr(*argv.add(i)) }.to_string_lossy().into_owned())
        .collect()
}
