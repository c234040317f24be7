//! Other programs in this process: exec(3). From then on offsets are the kernel's, and the new program
//! inherits ignored signals.
//!
//! Functions with a variable number of arguments cannot be defined in stable Rust. So stubs pass the
//! registers and the stack, by the System V ABI, to a function that finds the arguments there. No memory is
//! taken from the heap: a signal handler, or the child of a vfork, may call any of these.

use crate::{fork, memory, real, signals};
use libc::{c_char, c_int, c_void};

type Text = *const c_char;
type Texts = *const Text;

unsafe extern "C" {
    static environ: Texts;
}

/// Runs a call that executes another program unless it fails.
pub fn executing<T>(call: impl FnOnce() -> T) -> T {
    let errno = real::errno();
    fork::before_exec();
    real::set_errno(errno);
    signals::handing_on(call)
}

macro_rules! executing {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller's promise.
            executing(|| unsafe { real::$name($($arg),*) })
        }
    )*};
}

executing! {
    execve(path: Text, arguments: Texts, environment: Texts);
    execv(path: Text, arguments: Texts);
    execvp(file: Text, arguments: Texts);
    execvpe(file: Text, arguments: Texts, environment: Texts);
    fexecve(fd: c_int, arguments: Texts, environment: Texts);
    execveat(dir: c_int, path: Text, arguments: Texts, environment: Texts, flags: c_int);
}

/// Number of arguments in registers; the others are on the stack.
#[cfg(target_arch = "x86_64")]
const IN_REGISTERS: usize = 6;
#[cfg(target_arch = "aarch64")]
const IN_REGISTERS: usize = 8;

/// Number of arguments that fit the stack; more need memory from the kernel.
const FEW: usize = 256;

/// The arguments of a call, in registers and on the stack.
#[derive(Clone, Copy)]
struct Given {
    registers: Texts,
    stack: Texts,
}

impl Given {
    /// # Safety
    /// The argument exists.
    /// There is such an argument.
    unsafe fn at(self, number: usize) -> Text {
        // SAFETY: the caller's promise.
        unsafe {
            match number.checked_sub(IN_REGISTERS) {
                None => *self.registers.add(number),
                Some(on_stack) => *self.stack.add(on_stack),
            }
        }
    }

    /// Calls `call` with the texts from argument `first` to the null behind them, and with the index of the
    /// next argument.
    ///
    /// # Safety
    /// The list ends with a null.
    unsafe fn list(self, first: usize, call: impl FnOnce(Texts, usize) -> c_int) -> c_int {
        // SAFETY: the caller's promise.
        let count = (0..).take_while(|at| unsafe { !self.at(first + at).is_null() }).count();
        let mut few = [std::ptr::null(); FEW];
        let bytes = (count + 1) * size_of::<Text>();
        let more = if count < FEW { None } else { memory::map_zeroed(bytes) };
        let list = match more {
            Some(more) => more.cast::<Text>(),
            None if count < FEW => few.as_mut_ptr(),
            None => {
                real::set_errno(libc::ENOMEM);
                return -1;
            }
        };
        for at in 0..count {
            // SAFETY: there is room for one more than these, and the last is null already.
            unsafe { *list.add(at) = self.at(first + at) };
        }
        let done = call(list, first + count + 1);
        if let Some(more) = more {
            // SAFETY: mapped above, and used by no other thread.
            let _ = unsafe { rustix::mm::munmap(more.cast::<c_void>(), bytes) };
        }
        done
    }
}

unsafe extern "C" fn with_list(registers: Texts, stack: Texts) -> c_int {
    let given = Given { registers, stack };
    // SAFETY: the caller's promise.
    unsafe { given.list(1, |list, _| execve(given.at(0), list, environ)) }
}

unsafe extern "C" fn with_list_by_path(registers: Texts, stack: Texts) -> c_int {
    let given = Given { registers, stack };
    // SAFETY: the caller's promise.
    unsafe { given.list(1, |list, _| execvp(given.at(0), list)) }
}

unsafe extern "C" fn with_list_and_environment(registers: Texts, stack: Texts) -> c_int {
    let given = Given { registers, stack };
    // SAFETY: the caller's promise.
    unsafe { given.list(1, |list, behind| execve(given.at(0), list, given.at(behind).cast())) }
}

macro_rules! listing {
    ($($name:ident, $with:ident;)*) => {$(
        /// As the C library's; see the module.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push r9", "push r8", "push rcx", "push rdx", "push rsi", "push rdi",
                "mov rdi, rsp", "lea rsi, [rsp+56]",
                "sub rsp, 8",
                "call {with}",
                "add rsp, 56",
                "ret",
                with = sym $with,
            )
        }

        /// As the C library's; see the module.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!", "mov x29, sp",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                "add x0, sp, #16", "add x1, sp, #80",
                "bl {with}",
                "ldp x29, x30, [sp], #80",
                "ret",
                with = sym $with,
            )
        }
    )*};
}

listing! {
    execl, with_list;
    execlp, with_list_by_path;
    execle, with_list_and_environment;
}
