//! Folders that a session has beside its workspace: volumes, which the daemon keeps, and folders of the caller.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

use super::ids::VolumeName;
use super::limits::{MOUNT_TARGET_CHARS, MOUNTS};
use super::text::quotable;

/// The first parts of paths in a sandbox that are the system's, an image's or Belljar's own.
const TAKEN: [&str; 18] = [
    "belljar",
    "bin",
    "boot",
    "dev",
    "etc",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "proc",
    "root",
    "run",
    "sbin",
    "sys",
    "tmp",
    "usr",
    "var",
    "workspace",
];

/// A volume of the caller in a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeMount {
    pub name: VolumeName,
    /// Absolute path in the sandbox.
    pub target: String,
    #[serde(default)]
    pub read_only: bool,
}

/// A folder of the caller in a session, which can read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FolderMount {
    /// Absolute path of the folder.
    pub folder: String,
    /// Absolute path in the sandbox.
    pub target: String,
}

/// Checks number and places of the mounts of one session.
///
/// # Errors
/// Says which place cannot be used, and why.
pub fn check(volumes: &[VolumeMount], folders: &[FolderMount]) -> Result<(), String> {
    if volumes.len() + folders.len() > MOUNTS {
        return Err(format!("a session has more than {MOUNTS} volumes and mounts"));
    }
    let mut targets =
        volumes.iter().map(|volume| &volume.target).chain(folders.iter().map(|folder| &folder.target));
    let mut seen: Vec<&String> = Vec::new();
    targets.try_for_each(|target| {
        check_target(target)?;
        let nested =
            |other: &&&String| Path::new(target).starts_with(other) || Path::new(other).starts_with(target);
        if let Some(other) = seen.iter().find(nested) {
            return Err(format!(
                "`{target}` and `{other}` are the same place in the sandbox, or one is in the other; each needs a place of its own"
            ));
        }
        seen.push(target);
        Ok(())
    })
}

fn check_target(target: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.chars().all(is_plain);
    let parts: Vec<&str> = target.strip_prefix('/').unwrap_or_default().split('/').collect();
    if target.len() > MOUNT_TARGET_CHARS || !parts.iter().all(|part| is_part(part)) {
        return Err(format!(
            "`{}` is no place in a sandbox: use an absolute path of at most {MOUNT_TARGET_CHARS} letters, digits, \
             `-`, `_` and `.`, without `.` and `..` as a part, such as `/data`",
            quotable(target)
        ));
    }
    if parts.first().is_some_and(|first| TAKEN.contains(first)) {
        return Err(format!(
            "nothing can be mounted at `{target}`: `/{}` is the sandbox's own; use another place, such as `/data`",
            parts[0]
        ));
    }
    Ok(())
}

/// Reads `NAME:/data` or `NAME:/data:ro`.
///
/// # Errors
/// Says what is wrong with it.
pub fn parse_volume(text: &str) -> Result<VolumeMount, String> {
    let wrong = || "a volume is `NAME:/PATH` or `NAME:/PATH:ro`".to_owned();
    let (name, target) = text.split_once(':').ok_or_else(wrong)?;
    let (target, read_only) = target.strip_suffix(":ro").map_or((target, false), |target| (target, true));
    check_target(target)?;
    Ok(VolumeMount { name: VolumeName::parse(name)?, target: target.to_owned(), read_only })
}

/// Reads `DIR:/ref:ro`.
///
/// # Errors
/// Says what is wrong with it.
pub fn parse_folder(text: &str) -> Result<FolderMount, String> {
    let wrong = || {
        "a mount is `DIR:/PATH:ro`: a folder of yours that the session can read; what it writes to belongs into a volume \
         or the workspace"
            .to_owned()
    };
    let (folder, target) =
        text.strip_suffix(":ro").and_then(|text| text.rsplit_once(':')).ok_or_else(wrong)?;
    check_target(target)?;
    if folder.is_empty() {
        Err(wrong())
    } else {
        Ok(FolderMount { folder: folder.into(), target: target.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_and_folders_are_read() {
        let volume = parse_volume("models:/data/m-1").unwrap();
        assert_eq!((volume.name.as_str(), &*volume.target, volume.read_only), ("models", "/data/m-1", false));
        assert!(parse_volume("models:/data:ro").unwrap().read_only);
        let folder = parse_folder("/a:b:/ref:ro").unwrap();
        assert_eq!((&*folder.folder, &*folder.target), ("/a:b", "/ref"));
        for wrong in [
            "",
            "models",
            "models:",
            "models:data",
            ":/data",
            "a b:/data",
            "models:/data:rw",
            "models:/data:",
        ] {
            assert!(parse_volume(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "/a:/ref", "/a:/ref:rw", ":/ref:ro", "/a:ref:ro", "/a:/usr:ro"] {
            assert!(parse_folder(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn places_of_the_system_are_refused() {
        for fine in ["/data", "/mnt/a/b", "/home/x", "/opt/x", "/srv", "/data.d", "/usrlocal", "/..a"] {
            assert_eq!(check_target(fine), Ok(()), "{fine}");
        }
        for taken in [
            "/proc",
            "/proc/1",
            "/sys/x",
            "/dev/shm",
            "/belljar/kernel",
            "/etc",
            "/usr/lib",
            "/tmp/x",
            "/workspace",
        ] {
            assert!(check_target(taken).unwrap_err().contains("own"), "{taken}");
        }
        for wrong in [
            "",
            "/",
            "data",
            "/data/",
            "//data",
            "/a/../usr",
            "/./usr",
            "/a\0",
            "/a b",
            "/ä",
            "/a:b",
            "/a,ro",
        ] {
            assert!(check_target(wrong).unwrap_err().contains("is no place"), "{wrong:?}");
        }
        assert!(check_target(&format!("/{}", "a".repeat(MOUNT_TARGET_CHARS))).is_err());
    }

    #[test]
    fn no_mount_lies_in_another_and_they_are_few() {
        let volume = |target: &str| parse_volume(&format!("v:{target}")).unwrap();
        let folder = |target: &str| parse_folder(&format!("/x:{target}:ro")).unwrap();
        assert_eq!(check(&[volume("/a"), volume("/b/c")], &[folder("/b/d"), folder("/ab")]), Ok(()));
        assert!(check(&[volume("/a")], &[folder("/a")]).is_err());
        assert!(check(&[volume("/a"), volume("/a/b")], &[]).is_err());
        assert!(check(&[volume("/a/b")], &[folder("/a")]).is_err());
        let many = |count: usize| (0..count).map(|n| volume(&format!("/v{n}"))).collect::<Vec<_>>();
        assert_eq!(check(&many(MOUNTS), &[]), Ok(()));
        assert!(check(&many(MOUNTS), &[folder("/one/more")]).is_err());
    }
}
