//! Other names of the C library for functions that are defined here: a program that uses one of them calls
//! the same function.
//!
//! Each name jumps to the function, so that arguments, result and a second return (vfork) are that
//! function's. A test compares this list with the names in the C library.

macro_rules! names {
    ($($name:ident: $($function:ident)::+;)*) => {$(
        /// As the function to which it jumps.
        ///
        /// # Safety
        /// As that function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!("jmp {function}", function = sym $($function)::+);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!("b {function}", function = sym $($function)::+);
        }
    )*};
}

names! {
    __open: super::open::open;
    __open64: super::open::open64;
    __close: super::descriptor_numbers::close;
    __dup2: super::descriptor_numbers::dup2;
    __fcntl: super::descriptor_numbers::fcntl;
    __libc_fcntl64: super::descriptor_numbers::fcntl64;
    __pipe: super::descriptor_numbers::pipe;
    __socket: super::descriptor_numbers::socket;
    __read: super::data::read;
    __write: super::data::write;
    __pread64: super::data::pread64;
    __pwrite64: super::data::pwrite64;
    __libc_pread: super::data::pread;
    __libc_pwrite: super::data::pwrite;
    __lseek: super::meta::lseek;
    llseek: super::meta::lseek;
    __fstat64: super::meta::fstat64;
    __mmap: super::copies::mmap;
    __sendmmsg: super::children::sendmmsg;
    __clone: super::children::clone;
    __vfork: crate::stubs::vfork;
    __fork: crate::fork::fork;
    __libc_fork: crate::fork::fork;
    __libc_system: super::stdio::system;
    _IO_fopen: super::stdio::fopen;
    _IO_fdopen: super::stdio::fdopen;
    _IO_fclose: super::stdio::fclose;
    _IO_popen: super::stdio::popen;
}
