//! Dates in reports and logs, in UTC.

use heddle_vfs::Time;

/// Date and time of day, UTC.
pub fn clock(at: Time) -> String {
    let Some([year, month, day, hour, minute, second]) = parts(at.secs()) else {
        return format!("{} s", at.secs());
    };
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// The present time, for a file name.
pub fn stamp() -> String {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let [year, month, day, hour, minute, second] = parts(now).unwrap_or_default();
    format!("{year}{month:02}{day:02}T{hour:02}{minute:02}{second:02}")
}

/// Year, month, day, hour, minute, second, UTC.
fn parts(secs: i64) -> Option<[i32; 6]> {
    // SAFETY: `tm` is plain integers and a pointer, for which zero is valid.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point to live locals.
    if unsafe { libc::gmtime_r(&secs, &mut tm) }.is_null() {
        return None;
    }
    Some([tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec])
}
