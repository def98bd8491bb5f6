//! Ctrl-C: asks the work to stop cleanly, and sees to it that the process ends within a second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crate::fault::{Code, Fault};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// How long the work has to stop by itself.
const GRACE: Duration = Duration::from_millis(700);

/// A flag that is set when the user wants to stop. Work that has not stopped soon after (it waits
/// for the disk or for a lock, and looks at no flag meanwhile) is ended after `last_words`; a
/// second Ctrl-C ends it at once.
pub fn flag(last_words: impl Fn() + Send + Sync + 'static) -> Result<&'static AtomicBool, Fault> {
    static HANDLER: OnceLock<Result<(), String>> = OnceLock::new();
    let last_words = Arc::new(last_words);
    let handler = HANDLER.get_or_init(|| {
        ctrlc::set_handler(move || {
            if REQUESTED.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
            // On a thread of its own, so that the second Ctrl-C is heard.
            let last_words = last_words.clone();
            thread::spawn(move || {
                thread::sleep(GRACE);
                last_words();
                std::process::exit(130);
            });
        })
        .map_err(|error| error.to_string())
    });
    match handler {
        Ok(()) => Ok(&REQUESTED),
        Err(why) => Err(Fault::new(Code::Internal, format!("cannot catch Ctrl-C: {why}"))),
    }
}
