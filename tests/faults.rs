//! What can go wrong while `lathe create` writes, made to happen: it is killed, interrupted, out of
//! space, not alone in the store, or its source changes. What is in the store stays valid, and the
//! next create ends with the same digests.
//!
//! Ten kills in the test run; `LATHE_KILLS=200 cargo test --test faults kill` for more.

#![cfg(unix)]

mod common;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::Sandbox;
use lathe::create::{Recipe, Settings, prepare};
use lathe::fault::Code;
use lathe::store::{Name, Store};
use lathe::write;

const CREATE: [&str; 5] = ["create", "m", "source", "-q", "int4"];

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.larger_model("source");
    sandbox
}

fn names(dir: &Path) -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(dir) else { return BTreeSet::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn blobs(sandbox: &Sandbox) -> BTreeSet<String> {
    names(&sandbox.path("store/blobs"))
}

fn manifest(sandbox: &Sandbox, name: &str) -> PathBuf {
    sandbox.path("store/manifests/registry.ollama.ai/library").join(name).join("latest")
}

fn begin(sandbox: &Sandbox, args: &[&str]) -> Child {
    sandbox.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Exit code and standard error.
fn end(child: Child) -> (i32, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8(output.stderr).unwrap())
}

fn interrupt(child: &Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
}

#[test]
fn a_killed_create_leaves_a_store_that_the_next_one_completes() {
    let kills: u32 = std::env::var("LATHE_KILLS").map_or(10, |n| n.parse().unwrap());
    let sandbox = sandbox();
    let begun = Instant::now();
    sandbox.lathe(&CREATE).ok();
    let took = begun.elapsed();
    let expected = fs::read(manifest(&sandbox, "m")).unwrap();
    let whole = blobs(&sandbox);
    let size = |name: &String| fs::metadata(sandbox.path("store/blobs").join(name)).unwrap().len();
    let sizes: Vec<u64> = whole.iter().map(size).collect();

    let mut cut_short = 0;
    let mut half_done = 0;
    for kill in 0..kills {
        fs::remove_dir_all(sandbox.path("store")).unwrap();
        let mut child = begin(&sandbox, &CREATE);
        // Evenly spread over the run, and a little beyond its end.
        thread::sleep(took.mul_f64(1.1 * f64::from(kill) / f64::from(kills)));
        cut_short += u32::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();

        let found = blobs(&sandbox);
        half_done += u32::from(!found.is_empty() && !found.is_superset(&whole));
        sandbox.lathe(&["verify"]).ok();
        // Only whole blobs bear the names of blobs.
        for name in found.iter().filter(|name| name.starts_with("sha256-")) {
            let at = whole.iter().position(|other| other == name);
            let at = at.unwrap_or_else(|| panic!("kill {kill}: {name} is no blob of the model"));
            assert_eq!(size(name), sizes[at], "kill {kill}: {name}");
        }
        if manifest(&sandbox, "m").exists() {
            assert_eq!(fs::read(manifest(&sandbox, "m")).unwrap(), expected, "kill {kill}");
        }
        sandbox.lathe(&CREATE).ok();
        assert_eq!(fs::read(manifest(&sandbox, "m")).unwrap(), expected, "kill {kill}");
        sandbox.lathe(&["verify"]).ok();
        sandbox.lathe(&["gc"]).ok();
        assert_eq!(blobs(&sandbox), whole, "kill {kill}: nothing else is left");
    }
    println!("{kills} kills, {cut_short} before the end, {half_done} left something to clean up");
    assert!(kills < 10 || cut_short > 0, "no kill came before the end ({took:?})");
}

#[test]
fn an_interrupt_ends_within_a_second_and_says_what_was_kept() {
    let sandbox = sandbox();
    // Some interrupts come before the work begins or after it has ended: try several moments.
    for moment in [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560] {
        let _ = fs::remove_dir_all(sandbox.path("store"));
        let child = begin(&sandbox, &[&CREATE[..], &["--jobs", "1"]].concat());
        thread::sleep(Duration::from_millis(moment));
        let begun = Instant::now();
        interrupt(&child);
        let (code, said) = end(child);
        assert!(begun.elapsed() < Duration::from_secs(1), "took {:?}", begun.elapsed());
        if code == 130 {
            assert!(said.contains("interrupted") && said.contains("kept"), "{said}");
            assert!(!manifest(&sandbox, "m").exists());
            assert!(sandbox.stored().iter().all(|file| !file.contains("staged")));
            return;
        }
    }
    panic!("no interrupt came while it worked");
}

/// As long as another lathe removes blobs, a create waits; the interrupt need not.
#[test]
fn an_interrupt_ends_a_create_that_waits() {
    let sandbox = sandbox();
    sandbox.lathe(&CREATE).ok();
    let lock = File::options().append(true).open(sandbox.path("store/lathe.lock")).unwrap();
    lock.lock().unwrap();
    let mut child = begin(&sandbox, &[&CREATE[..], &["-o", "json"]].concat());
    thread::sleep(Duration::from_secs(2));
    assert!(child.try_wait().unwrap().is_none(), "it should wait for the lock");
    let begun = Instant::now();
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "took {:?}", begun.elapsed());
    assert_eq!(output.status.code(), Some(130));
    let last: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(last["error"]["code"], "interrupted");
}

/// A limit on the size of files makes a write fail in the middle, on any machine.
#[test]
fn a_write_that_fails_leaves_nothing_behind() {
    let sandbox = sandbox();
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 1000; exec \"$@\"", "sh"]);
    shell.arg(env!("CARGO_BIN_EXE_lathe")).args(CREATE).env("LATHE_STORE", sandbox.path("store"));
    let failed = shell.current_dir(sandbox.path("")).output().unwrap();
    let said = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write") && said.contains("too large"), "{said}");
    assert_eq!(sandbox.stored(), [""; 0]);
    sandbox.lathe(&CREATE).ok();
    sandbox.lathe(&["verify"]).ok();
}

/// A file system of its own for the sandbox's store, where the system lets us mount one.
struct Mounted(PathBuf);

impl Mounted {
    fn new(sandbox: &Sandbox, options: &str) -> Option<Mounted> {
        let dir = sandbox.path("store");
        fs::create_dir_all(&dir).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&dir);
        match mount.output() {
            Ok(output) if output.status.success() => Some(Mounted(dir)),
            _ => {
                println!("skipped: no tmpfs can be mounted here");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn space_is_checked_first_and_what_is_there_already_is_subtracted() {
    let sandbox = sandbox();
    let Some(_mounted) = Mounted::new(&sandbox, "size=36m") else { return };
    sandbox.lathe(&CREATE).ok();
    // Less is free than the model takes, but all of it is there.
    let free = Store::open(Some(&sandbox.path("store"))).unwrap().free_space().unwrap();
    let size = sandbox.lathe(&["show", "m", "-o", "json"]).json()["size"].as_u64().unwrap();
    assert!(free < size, "{free} {size}");
    let again = ["create", "again", "source", "-q", "int4", "--jobs", "1"];
    assert!(sandbox.lathe(&again).ok().contains("every blob was in the store already"));
    // At source precision only the embedding and the norms are there.
    let refused = sandbox.lathe(&["create", "x", "source", "--jobs", "1", "-o", "json"]);
    assert_eq!(refused.code, 1);
    let error = &refused.events()[0]["error"];
    assert_eq!(error["code"], "no-space");
    let message = error["message"].as_str().unwrap();
    let number = |after: &str| -> u64 {
        let text = message.split_once(after).unwrap().1;
        text.split(' ').next().unwrap().parse().unwrap()
    };
    let source = fs::metadata(sandbox.path("source/model.safetensors")).unwrap().len();
    // The embedding is there, but it is written before that is found out.
    assert!((source - 1000..source + 20_000).contains(&number("needs ")), "{message} of {source}");
    assert!(number("its disk has ") <= free, "{message}");
    assert!(!manifest(&sandbox, "x").exists());
}

/// Room for some files and no more.
#[test]
fn a_full_disk_is_a_clear_error_and_leaves_nothing() {
    let sandbox = sandbox();
    let Some(mounted) = Mounted::new(&sandbox, "size=64m,nr_inodes=40") else { return };
    let failed = sandbox.lathe(&CREATE);
    assert_eq!(failed.code, 1);
    assert!(failed.stderr.contains("no-space") && failed.stderr.contains("lathe gc"));
    assert_eq!(sandbox.stored(), [""; 0]);
    let mut remount = Command::new("mount");
    remount.args(["-o", "remount,nr_inodes=1000"]).arg(&mounted.0);
    assert!(remount.status().unwrap().success());
    sandbox.lathe(&CREATE).ok();
    sandbox.lathe(&["verify"]).ok();
}

/// The disk fills up after the check, while blobs are being written.
#[test]
fn a_disk_that_fills_up_meanwhile_is_a_clear_error_and_leaves_nothing() {
    struct Fill(PathBuf);
    impl write::Progress for Fill {
        fn phase(&self, phase: &'static str) {
            if phase == write::WRITING {
                fs::write(&self.0, vec![1; 36 << 20]).unwrap();
            }
        }
    }
    let sandbox = sandbox();
    let Some(_mounted) = Mounted::new(&sandbox, "size=48m") else { return };
    let store = Store::open(Some(&sandbox.path("store"))).unwrap();
    let source = sandbox.path("source");
    let recipe = Recipe::from_source(source.to_str().unwrap(), None, &store).unwrap();
    let mut settings = Settings::default();
    settings.request.format = Some("int4".into());
    let prepared = prepare(recipe, &settings, &store).unwrap();
    let filler = sandbox.path("store/filler");
    let options = write::Options {
        jobs: 2,
        memory: 1 << 30,
        quantizer: &write::Native,
        progress: &Fill(filler.clone()),
        cancel: &AtomicBool::new(false),
    };
    let faults =
        prepared.write(&Name::parse("m").unwrap(), &store, &options, &|_, _| Ok(())).unwrap_err();
    assert_eq!(faults.0[0].code, Code::NoSpace, "{faults}");
    assert_eq!(sandbox.stored(), ["filler"]);
    fs::remove_file(filler).unwrap();
    sandbox.lathe(&CREATE).ok();
    sandbox.lathe(&["verify"]).ok();
}

#[test]
fn creates_at_the_same_time_share_the_store() {
    let sandbox = sandbox();
    for round in 0..3 {
        let _ = fs::remove_dir_all(sandbox.path("store"));
        let arguments: [&[&str]; 4] = [
            &CREATE,
            &CREATE,
            &["create", "n", "source", "-q", "int4"],
            &["create", "o", "source"],
        ];
        let children: Vec<Child> = arguments.iter().map(|args| begin(&sandbox, args)).collect();
        for child in children {
            let (code, said) = end(child);
            assert_eq!(code, 0, "round {round}: {said}");
        }
        sandbox.lathe(&["verify"]).ok();
        let before = blobs(&sandbox);
        assert!(before.iter().all(|name| name.starts_with("sha256-")), "{before:?}");
        sandbox.lathe(&["gc"]).ok();
        assert_eq!(blobs(&sandbox), before, "nothing was left over");
        assert_eq!(
            fs::read(manifest(&sandbox, "m")).unwrap(),
            fs::read(manifest(&sandbox, "n")).unwrap()
        );
    }
}

/// `gc` meets blobs that no manifest mentions yet, and `rm` takes the manifest that mentions them.
#[test]
fn gc_and_rm_take_nothing_from_a_create_that_runs() {
    let sandbox = sandbox();
    sandbox.lathe(&["create", "old", "source", "-q", "int4"]).ok();
    let refused = AtomicBool::new(false);
    for round in 0..4 {
        let child = begin(&sandbox, &CREATE);
        let done = AtomicBool::new(false);
        let (code, said) = thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let gc = sandbox.lathe(&["gc"]);
                    let busy = gc.stderr.contains("another lathe is at work");
                    assert!(gc.code == 0 || busy, "{}", gc.stderr);
                    refused.fetch_or(busy, Ordering::Relaxed);
                }
            });
            thread::sleep(Duration::from_millis(40 * round));
            sandbox.lathe(&["rm", "old"]).ok();
            let ended = end(child);
            done.store(true, Ordering::Relaxed);
            ended
        });
        assert_eq!(code, 0, "round {round}: {said}");
        sandbox.lathe(&["verify", "m"]).ok();
        sandbox.lathe(&["cp", "m", "old"]).ok();
        sandbox.lathe(&["rm", "m"]).ok();
        sandbox.lathe(&["verify"]).ok();
    }
    assert!(refused.into_inner(), "no gc met a create");
}

#[test]
fn a_source_that_cannot_be_written_is_enough_and_stays_as_it_is() {
    let sandbox = sandbox();
    let source = sandbox.path("source");
    let state = || -> Vec<_> {
        names(&source)
            .into_iter()
            .map(|name| (fs::metadata(source.join(&name)).unwrap().modified().unwrap(), name))
            .collect()
    };
    let before = state();
    let allow = |file: u32, folder: u32| {
        for name in names(&source) {
            fs::set_permissions(source.join(name), PermissionsExt::from_mode(file)).unwrap();
        }
        fs::set_permissions(&source, PermissionsExt::from_mode(folder)).unwrap();
    };
    allow(0o444, 0o555);
    let made = sandbox.lathe(&CREATE);
    let after = state();
    allow(0o644, 0o755);
    made.ok();
    assert_eq!(before, after);
}

#[test]
fn a_source_that_changes_while_it_is_read_is_noticed() {
    let sandbox = sandbox();
    let weights = sandbox.path("source/model.safetensors");
    let file = File::options().write(true).open(&weights).unwrap();
    let end_of_file = file.metadata().unwrap().len();
    let done = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            // The length stays, and so do the headers.
            for byte in (0..=255).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                file.write_all_at(&[byte], end_of_file - 1).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let outcome = sandbox.lathe(&[&CREATE[..], &["-o", "json"]].concat());
        done.store(true, Ordering::Relaxed);
        outcome
    });
    assert_eq!(outcome.code, 1);
    let error = &outcome.events().pop().unwrap()["error"];
    assert_eq!(error["code"], "stale-plan", "{error}");
    assert!(error["message"].as_str().unwrap().contains("changed while it was being read"));
    assert_eq!(sandbox.stored(), [""; 0]);
    sandbox.lathe(&CREATE).ok();
}
