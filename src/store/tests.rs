//! The store's promises, on small stores in temporary folders.

use std::io::Write;
use std::sync::Barrier;

use super::*;

struct Sandbox {
    _dir: tempfile::TempDir,
    store: Store,
}

fn sandbox() -> Sandbox {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Some(&dir.path().join("store"))).unwrap();
    Sandbox { _dir: dir, store }
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

/// A model with one blob for each of `parts`.
fn create(store: &Store, model: &str, parts: &[&[u8]]) -> Committed {
    let writer = store.writer().unwrap();
    let config = writer.add(b"{\"model_format\":\"safetensors\"}").unwrap();
    let layers = parts
        .iter()
        .enumerate()
        .map(|(i, bytes)| {
            let blob = writer.add(bytes).unwrap();
            blob.layer(media::JSON, Some(&format!("{i}.json")))
        })
        .collect();
    let manifest = Manifest::new(config.layer(media::CONFIG, None), layers);
    writer.commit(&name(model), &manifest).unwrap()
}

/// Every file of the store but the lock, relative, sorted.
fn files(store: &Store) -> Vec<String> {
    fn below(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.path().is_dir() { below(&entry.path(), out) } else { out.push(entry.path()) }
        }
    }
    let mut found = Vec::new();
    below(store.dir(), &mut found);
    let relative = |path: &PathBuf| path.strip_prefix(store.dir()).unwrap().display().to_string();
    let mut found: Vec<_> = found.iter().map(relative).filter(|f| f != "lathe.lock").collect();
    found.sort();
    found
}

#[test]
fn the_layout_and_the_manifest_are_what_ollama_reads() {
    let Sandbox { store, _dir } = sandbox();
    create(&store, "me/m:q4", &[b"{}"]);
    let blob = |bytes: &[u8]| format!("blobs/{}", Digest::of(bytes).file_name());
    let mut expected = vec![
        blob(b"{}"),
        blob(b"{\"model_format\":\"safetensors\"}"),
        "manifests/registry.ollama.ai/me/m/q4".to_string(),
    ];
    expected.sort();
    assert_eq!(files(&store), expected);
    let manifest = fs::read_to_string(store.dir().join(&expected[2])).unwrap();
    insta::assert_snapshot!(manifest, @r#"{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json","config":{"mediaType":"application/vnd.docker.container.image.v1+json","digest":"sha256:11e5035637d9d03f2dc921ad6ac0b212a84fd8222d710e2c0de97b0d23c21f3d","size":30},"layers":[{"mediaType":"application/vnd.ollama.image.json","digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2,"name":"0.json"}]}"#);
}

#[cfg(unix)]
#[test]
fn blobs_and_manifests_are_readable_like_any_file_the_user_makes() {
    use std::os::unix::fs::PermissionsExt;
    let Sandbox { store, _dir } = sandbox();
    create(&store, "m", &[b"{}"]);
    let plain = store.dir().join("plain");
    fs::write(&plain, "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    for file in files(&store) {
        assert_eq!(mode(&store.dir().join(&file)), mode(&plain), "{file}");
    }
}

#[test]
fn the_same_model_again_writes_nothing() {
    let Sandbox { store, _dir } = sandbox();
    let first = create(&store, "m", &[b"a", b"bb", b"a"]);
    assert_eq!((first.new_blobs, first.unchanged), (3, false));
    assert_eq!(first.new_bytes, 3 + 30);
    let before = files(&store);
    let again = create(&store, "M", &[b"a", b"bb", b"a"]);
    assert_eq!((again.new_blobs, again.unchanged), (0, true));
    assert_eq!(files(&store), before, "in any case of the name");
    let changed = create(&store, "m", &[b"a", b"c"]);
    assert_eq!((changed.new_blobs, changed.unchanged), (1, false));
    assert_eq!(store.names().unwrap(), [name("m")]);
}

#[test]
fn a_blob_of_the_wrong_size_is_written_again() {
    let Sandbox { store, _dir } = sandbox();
    create(&store, "m", &[b"hello"]);
    fs::write(store.blob_path(&Digest::of(b"hello")), "hel").unwrap();
    create(&store, "m", &[b"hello"]);
    assert_eq!(fs::read(store.blob_path(&Digest::of(b"hello"))).unwrap(), b"hello");
}

#[test]
fn an_abandoned_writer_leaves_nothing_and_a_killed_ones_files_are_reclaimed() {
    let Sandbox { store, _dir } = sandbox();
    {
        let writer = store.writer().unwrap();
        writer.add(b"finished").unwrap();
        writer.stage().unwrap().write_all(b"unfinished").unwrap();
    }
    assert_eq!(files(&store), [""; 0]);
    // As a killed process leaves them: staged files, and no lock.
    fs::write(store.dir().join("blobs/.lathe-staged-x1"), "blob").unwrap();
    fs::create_dir_all(store.dir().join("manifests/h/n/m")).unwrap();
    fs::write(store.dir().join("manifests/h/n/m/.lathe-staged-x2"), "{").unwrap();
    assert!(store.names().unwrap().is_empty());
    drop(store.writer().unwrap());
    assert_eq!(files(&store), [""; 0]);
}

#[test]
fn a_writers_files_are_safe_from_other_writers_and_from_gc() {
    let Sandbox { store, _dir } = sandbox();
    let first = store.writer().unwrap();
    let blob = first.add(b"shared").unwrap();
    let second = store.writer().unwrap();
    assert_eq!(second.add(b"shared").unwrap(), blob, "staged, not committed: still new");
    drop(second);
    assert_eq!(store.gc(false).unwrap_err().code, Code::Store);
    let manifest = Manifest::new(blob.layer(media::CONFIG, None), vec![]);
    first.commit(&name("m"), &manifest).unwrap();
    assert!(store.gc(false).unwrap().blobs.is_empty());
}

#[test]
fn a_manifest_that_needs_a_missing_blob_is_refused() {
    let Sandbox { store, _dir } = sandbox();
    let writer = store.writer().unwrap();
    let absent = Blob { digest: Digest::of(b"absent"), size: 6, new: true };
    let manifest = Manifest::new(absent.layer(media::CONFIG, None), vec![]);
    assert_eq!(writer.commit(&name("m"), &manifest).unwrap_err().code, Code::CorruptBlob);
    assert_eq!(files(&store), [""; 0]);
}

#[test]
fn copies_share_blobs_and_removing_keeps_what_others_need() {
    let Sandbox { store, _dir } = sandbox();
    create(&store, "a", &[b"common", b"only a"]);
    create(&store, "b", &[b"common"]);
    store.copy(&name("a"), &name("c:x")).unwrap();
    assert_eq!(store.entry(&name("a")).unwrap().digest, store.entry(&name("c:x")).unwrap().digest);
    let names: Vec<_> = store.names().unwrap().iter().map(Name::to_string).collect();
    assert_eq!(names, ["a:latest", "b:latest", "c:x"]);
    assert_eq!(store.remove(&[name("a")]).unwrap(), Removed::default(), "c:x needs all of it");
    let removed = store.remove(&[name("c:x")]).unwrap();
    assert_eq!(removed, Removed { blobs: 1, bytes: 6, deferred: false });
    assert!(!store.dir().join("manifests/registry.ollama.ai/library/c").exists());
    assert_eq!(store.remove(&[name("b")]).unwrap().blobs, 2);
    assert_eq!(files(&store), [""; 0]);
}

#[test]
fn removing_takes_all_or_none_and_names_the_nearest() {
    let Sandbox { store, _dir } = sandbox();
    create(&store, "smollm2:int4", &[b"x"]);
    let fault = store.remove(&[name("smollm2:int4"), name("smolm2:int4")]).unwrap_err();
    assert_eq!(fault.code, Code::NoSuchModel);
    assert!(fault.help.unwrap().contains("did you mean smollm2:int4?"));
    assert!(store.contains(&name("smollm2:int4")).unwrap());
    let other_tag = store.manifest(&name("smollm2:verylongtag")).unwrap_err();
    assert!(other_tag.help.unwrap().contains("did you mean smollm2:int4?"));
}

#[test]
fn a_busy_store_keeps_the_blobs_of_a_removed_model_for_gc() {
    let Sandbox { store, _dir } = sandbox();
    create(&store, "m", &[b"x"]);
    let writer = store.writer().unwrap();
    assert!(store.remove(&[name("m")]).unwrap().deferred);
    drop(writer);
    let dry = store.gc(true).unwrap();
    assert_eq!((dry.blobs.len(), dry.bytes), (2, 31));
    assert_eq!(store.gc(false).unwrap(), dry, "a dry run removes nothing");
    assert_eq!(files(&store), [""; 0]);
}

#[test]
fn gc_keeps_what_other_programs_manifests_mention() {
    let Sandbox { store, _dir } = sandbox();
    create(&store, "m", &[b"x"]);
    let put = |path: &str, text: &str| {
        let path = store.dir().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let blob = |text: &str| {
        put(&format!("blobs/{}", Digest::of(text.as_bytes()).file_name()), text);
        Digest::of(text.as_bytes())
    };
    // A list of manifests, kept elsewhere, whose one child is a blob that mentions another.
    let leaf = blob("leaf");
    let child = blob(&format!("{{\"layers\":[{{\"digest\":\"{leaf}\"}}]}}"));
    let list = format!(
        "{{\"mediaType\":\"application/vnd.ollama.manifest.list.v2+json\",\"manifests\":[{{\"digest\":\"{child}\"}}]}}"
    );
    let list_blob = blob(&list);
    put("manifests-v2/h/n/m/t", &list);
    put("blobs/sha256-0000-partial-1", "theirs");
    let stray = blob("stray");
    assert_eq!(store.gc(false).unwrap().blobs, [stray]);
    for kept in [leaf, child, list_blob] {
        assert!(store.blob_path(&kept).exists());
    }
    // What cannot be understood is not guessed at.
    put("manifests/h/n/m/broken", "{\"schemaVersion\":2,");
    blob("stray");
    let fault = store.gc(false).unwrap_err();
    assert!(fault.message.contains("broken"), "{fault}");
    assert!(store.blob_path(&stray).exists());
    assert!(store.list().unwrap()[0].manifest.is_err());
    assert!(store.remove(&[name("h/n/m:broken")]).unwrap().blobs == 0);
    assert_eq!(store.gc(false).unwrap().blobs, [stray]);
}

#[test]
fn verify_finds_every_kind_of_damage() {
    let Sandbox { store, _dir } = sandbox();
    create(&store, "m", &[b"fine", b"gone", b"short", b"changed"]);
    create(&store, "n", &[b"fine", b"gone"]);
    fs::remove_file(store.blob_path(&Digest::of(b"gone"))).unwrap();
    fs::write(store.blob_path(&Digest::of(b"short")), "s").unwrap();
    fs::write(store.blob_path(&Digest::of(b"changed")), "CHANGED").unwrap();
    let verified = store.verify(&[], &|_| ()).unwrap();
    assert_eq!((verified.blobs, verified.bytes), (2, 34));
    let found = |bytes: &[u8]| {
        let digest = Digest::of(bytes);
        verified.bad.iter().find(|bad| bad.digest == digest).unwrap()
    };
    assert_eq!(found(b"gone").damage, Damage::Missing);
    assert_eq!(found(b"gone").used_by, ["m:latest (1.json)", "n:latest (1.json)"]);
    assert_eq!(found(b"short").damage, Damage::Size { expected: 5, found: 1 });
    assert_eq!(found(b"changed").damage, Damage::Digest { found: Digest::of(b"CHANGED") });
    assert_eq!(verified.bad.len(), 3);
    assert_eq!(store.verify(&[name("n")], &|_| ()).unwrap().bad.len(), 1);
    // Deleted, what is damaged is written again.
    assert_eq!(store.delete_bad(&verified).unwrap(), 2);
    create(&store, "m", &[b"fine", b"gone", b"short", b"changed"]);
    assert!(store.verify(&[], &|_| ()).unwrap().bad.is_empty());
}

#[test]
fn many_threads_may_share_a_writer() {
    let Sandbox { store, _dir } = sandbox();
    let writer = store.writer().unwrap();
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        for i in 0..8_u8 {
            let (writer, barrier) = (&writer, &barrier);
            scope.spawn(move || {
                barrier.wait();
                writer.add(b"the same for all").unwrap();
                writer.add(&[i]).unwrap();
            });
        }
    });
    let layers: Vec<_> = (0..8_u8)
        .map(|i| Blob { digest: Digest::of(&[i]), size: 1, new: true }.layer(media::JSON, None))
        .collect();
    let config = writer.add(b"the same for all").unwrap();
    let manifest = Manifest::new(config.layer(media::CONFIG, None), layers);
    assert_eq!(writer.commit(&name("m"), &manifest).unwrap().new_blobs, 9);
    assert!(store.verify(&[], &|_| ()).unwrap().bad.is_empty());
}

#[test]
fn a_store_that_does_not_exist_is_empty_and_stays_so() {
    let Sandbox { store, _dir } = sandbox();
    assert!(store.list().unwrap().is_empty());
    assert_eq!(store.gc(false).unwrap(), Garbage::default());
    assert_eq!(store.verify(&[], &|_| ()).unwrap(), Verified::default());
    assert_eq!(store.manifest(&name("m")).unwrap_err().code, Code::NoSuchModel);
    assert_eq!(store.remove(&[name("m")]).unwrap_err().code, Code::NoSuchModel);
    assert!(!store.dir().exists());
    assert!(store.free_space().unwrap() > 0);
    assert_eq!(store.require_space(u64::MAX).unwrap_err().code, Code::NoSpace);
    store.require_space(1).unwrap();
}

#[test]
fn a_store_that_cannot_be_written_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for bad in [file.clone(), file.join("below")] {
        let fault = match Store::open(Some(&bad)) {
            Err(fault) => fault,
            Ok(store) => store.writer().unwrap_err(),
        };
        assert_eq!(fault.code, Code::Store);
        assert!(fault.help.unwrap().contains("--store"));
    }
}

mod weights {
    use super::*;
    use serde_json::json;

    /// A safetensors blob of zeros.
    fn blob(metadata: serde_json::Value, tensors: &[(&str, &str, &[u64])]) -> Vec<u8> {
        let mut header = serde_json::Map::new();
        header.insert("__metadata__".into(), metadata);
        let mut at = 0;
        for (name, dtype, shape) in tensors {
            let dtype: crate::dtype::Dtype = dtype.parse().unwrap();
            let end = at + shape.iter().product::<u64>() * dtype.bytes();
            header.insert(
                (*name).into(),
                json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]}),
            );
            at = end;
        }
        let header = serde_json::to_vec(&header).unwrap();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.resize(bytes.len() + at as usize, 0);
        bytes
    }

    fn weights(blob: &[u8]) -> Result<Vec<Weight>, crate::fault::Faults> {
        let Sandbox { store, _dir } = sandbox();
        let writer = store.writer().unwrap();
        let layer = writer.add(blob).unwrap().layer(media::TENSOR, Some("group"));
        let manifest = Manifest::new(layer.clone(), vec![layer]);
        writer.commit(&name("m"), &manifest).unwrap();
        store.weights(&manifest)
    }

    #[test]
    fn companions_join_their_weight_and_shapes_are_unpacked() {
        let all = weights(&blob(
            json!({"a.quant_type": "int4", "a.group_size": "64", "b.quant_type": "affine",
                   "b.bits": "3", "b.group_size": "32", "c.quant_type": "nvfp4", "c.group_size": "16"}),
            &[
                ("a", "U32", &[2, 5, 8]),
                ("a.scale", "F16", &[2, 5, 1]),
                ("a.bias", "F16", &[2, 5, 1]),
                ("b", "U32", &[4, 6]),
                ("b.scale", "BF16", &[4, 2]),
                ("b.bias", "BF16", &[4, 2]),
                ("c", "U32", &[4, 4]),
                ("c.scale", "U8", &[4, 2]),
                ("c.global_scale", "F32", &[]),
                ("d.bias", "F32", &[7]),
            ],
        ))
        .unwrap();
        let seen: Vec<_> = all
            .iter()
            .map(|w| {
                (
                    w.name.as_str(),
                    w.format_name(),
                    w.dtype.as_str(),
                    w.shape.clone(),
                    w.parts.len(),
                    w.bytes(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("a", "int4", "F16", vec![2, 5, 64], 3, 320 + 20 + 20),
                ("b", "int3-g32", "BF16", vec![4, 64], 3, 96 + 16 + 16),
                ("c", "nvfp4", "BF16", vec![4, 32], 3, 64 + 8 + 4),
                ("d.bias", "source", "F32", vec![7], 1, 28),
            ]
        );
    }

    #[test]
    fn damaged_blobs_are_told_with_their_name() {
        let mut short = blob(json!({}), &[("a", "F32", &[4])]);
        short.pop();
        let unknown = blob(
            json!({"quant_type": "int9"}),
            &[("a", "U32", &[1, 8]), ("a.scale", "F32", &[1, 1])],
        );
        let misfit = blob(
            json!({"quant_type": "int4"}),
            &[("a", "U32", &[1, 8]), ("a.scale", "F32", &[1, 2])],
        );
        let bare = blob(json!({}), &[("a", "U32", &[1, 8]), ("a.scale", "F32", &[1, 1])]);
        for bad in [
            b"".to_vec(),
            vec![255; 9],
            b"\x02\0\0\0\0\0\0\0[]".to_vec(),
            short,
            unknown,
            misfit,
            bare,
        ] {
            let faults = weights(&bad).unwrap_err();
            assert_eq!(faults.0[0].code, Code::CorruptBlob);
            assert_eq!(faults.0[0].tensor.as_deref(), Some("group"));
        }
    }
}
