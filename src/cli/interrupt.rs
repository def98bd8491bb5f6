//! Ctrl-C: asks the work to stop cleanly; a second one ends the process at once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fault::{Code, Fault};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// A flag that is set when the user wants to stop.
pub fn flag() -> Result<&'static AtomicBool, Fault> {
    static HANDLER: OnceLock<Result<(), String>> = OnceLock::new();
    let handler = HANDLER.get_or_init(|| {
        ctrlc::set_handler(|| {
            if REQUESTED.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        })
        .map_err(|error| error.to_string())
    });
    match handler {
        Ok(()) => Ok(&REQUESTED),
        Err(why) => Err(Fault::new(Code::Internal, format!("cannot catch Ctrl-C: {why}"))),
    }
}
