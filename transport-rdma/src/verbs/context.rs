//! Devices by name, and a device that was opened.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;

use rdma_sys::{
    ibv_close_device, ibv_context, ibv_device, ibv_device_attr, ibv_free_device_list,
    ibv_get_device_list, ibv_get_device_name, ibv_open_device, ibv_query_device,
};

use super::reaper::reap;
use super::ret::{CallError, Errno, non_null, zero_or_errno};

/// A device that was opened.
///
/// # Invariants
///
/// `raw` is an open context, made by `ibv_open_device`, until `self` drops; nothing else closes it. Objects
/// made of it hold an `Arc` of `self`, so they are destroyed first.
pub(super) struct Context {
    raw: NonNull<ibv_context>,
}

// SAFETY: "By default all verbs objects are safe for multi-threaded access" (man 3 ibv_alloc_td), and this fence asks
// for no other; nothing is bound to a thread.
unsafe impl Send for Context {}
// SAFETY: as for `Send`: all verbs may be called on one context at a time.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of this name, for example `rxe0`.
    pub(super) fn open(name: &str) -> Result<Self, CallError> {
        let list = DeviceList::read()?;
        let found = (0..list.count).find_map(|index| {
            let device = list.device(index)?;
            (device_name(device).as_deref() == Some(name)).then_some(device)
        });
        let gone = CallError { call: "ibv_open_device", errno: Errno(libc::ENODEV) };
        let device = found.ok_or(gone)?;
        // SAFETY: `device` is in `list`, which is alive.
        let raw = unsafe { ibv_open_device(device.as_ptr()) };
        Ok(Self { raw: non_null("ibv_open_device", raw)? })
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// What the device says of itself.
    pub(super) fn query(&self) -> Result<ibv_device_attr, CallError> {
        // SAFETY: the struct is plain numbers, for which zeros are a value.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open (invariant), and `attributes` is this call's to write.
        let returned = unsafe { ibv_query_device(self.raw(), &raw mut attributes) };
        zero_or_errno("ibv_query_device", returned)?;
        Ok(attributes)
    }

    /// The transport that the device speaks, a number of `enum ibv_transport_type`.
    pub(super) fn transport(&self) -> Option<i32> {
        // SAFETY: the context is open (invariant), and nothing writes to its fields.
        let context = unsafe { self.raw.as_ref() };
        let device = NonNull::new(context.device)?;
        // SAFETY: a context's device exists as long as the context (man 3 ibv_open_device).
        let transport = unsafe { (*device.as_ptr()).transport_type };
        Some(transport)
    }
}

impl AsRawFd for Context {
    /// Where asynchronous events come from.
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the context is open (invariant).
        unsafe { (*self.raw.as_ptr()).async_fd }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let closing = Closing(self.raw);
        reap(move || closing.close());
    }
}

/// A context on its way to the reaper.
struct Closing(NonNull<ibv_context>);

// SAFETY: as for `Context`.
unsafe impl Send for Closing {}

impl Closing {
    fn close(self) {
        // SAFETY: `Context` has dropped, so that nothing uses it (its invariant), and this closes it once.
        let returned = unsafe { ibv_close_device(self.0.as_ptr()) };
        if let Err(error) = zero_or_errno("ibv_close_device", returned) {
            tracing::error!(%error, "a device stays open");
        }
    }
}

/// The name of the device that a connection manager's id has found.
pub(super) fn name_of(context: NonNull<ibv_context>) -> Option<String> {
    // SAFETY: the caller's id holds the context open (man 3 rdma_resolve_addr).
    let device = unsafe { (*context.as_ptr()).device };
    device_name(NonNull::new(device)?)
}

/// Closes the descriptors of a context that the connection manager's library opened, on a device that was removed.
///
/// The library keeps a context of each device that it ever used, and would close it only when it finds other
/// devices instead; the kernel waits for it. The numbers stay the library's to close: they lead to a file where
/// each call fails. Whoever else uses the library in this process loses what it has on that device at once, and is not
/// waited for.
pub(super) fn hang_up(context: NonNull<ibv_context>) -> Result<(), CallError> {
    const CALL: &str = "closing the connection manager's device";
    let failed = |error: std::io::Error| CallError {
        call: CALL,
        errno: Errno(error.raw_os_error().unwrap_or(0)),
    };
    let dead = File::open("/dev/null").map_err(failed)?;
    // SAFETY: the caller's id holds the context open, and nothing writes to its descriptors.
    let context = unsafe { context.as_ref() };
    for fd in [context.cmd_fd, context.async_fd] {
        // SAFETY: takes and gives numbers only; `fd` is the context's, and stays open.
        let returned = unsafe { libc::dup3(dead.as_raw_fd(), fd, libc::O_CLOEXEC) };
        if returned < 0 {
            return Err(CallError { call: CALL, errno: Errno::last() });
        }
    }
    Ok(())
}

/// A device's name; `None` if it is no UTF-8.
fn device_name(device: NonNull<ibv_device>) -> Option<String> {
    // SAFETY: callers pass a device of a list or of a context that is alive.
    let name = NonNull::new(unsafe { ibv_get_device_name(device.as_ptr()) }.cast_mut())?;
    // SAFETY: the name is a string with a terminating zero, within the device.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    name.to_str().ok().map(str::to_owned)
}

/// The devices of the machine.
///
/// # Invariants
///
/// `raw` points to `count` device pointers, made by `ibv_get_device_list`, until `self` drops.
struct DeviceList {
    raw: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList {
    fn read() -> Result<Self, CallError> {
        const CALL: &str = "ibv_get_device_list";
        let mut count = 0;
        // SAFETY: `count` is this call's to write.
        let raw = unsafe { ibv_get_device_list(&raw mut count) };
        let raw = non_null(CALL, raw)?;
        Ok(Self { raw, count: usize::try_from(count).unwrap_or(0) })
    }

    fn device(&self, index: usize) -> Option<NonNull<ibv_device>> {
        if index >= self.count {
            return None;
        }
        // SAFETY: the index is within the list (invariant).
        let place = unsafe { self.raw.add(index) };
        // SAFETY: the list's entries are initialised (invariant).
        NonNull::new(unsafe { place.read() })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list was made by `ibv_get_device_list` and is freed once (invariant).
        unsafe { ibv_free_device_list(self.raw.as_ptr()) }
    }
}
