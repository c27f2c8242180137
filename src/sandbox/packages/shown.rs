//! The folder of installed packages that a sandbox sees. It is mounted read-only before anything is in it; the daemon
//! puts complete folders into it from the host, and a link leads to the newest one.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use super::tree;

/// The link that leads to the packages; it is on `sys.path` from the start, so it leads to an empty folder first.
const SITE: &str = "site";
const EMPTY: &str = "empty";

/// Makes the folder of a new sandbox.
pub fn prepare(folder: &Path) -> std::io::Result<()> {
    for path in [folder, &folder.join(EMPTY)] {
        std::fs::DirBuilder::new().mode(0o755).create(path)?;
        // Regardless of the daemon's umask, every guest can read it.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    }
    std::os::unix::fs::symlink(EMPTY, folder.join(SITE))
}

/// Lets the packages in `cached` appear in a sandbox's folder. Its name appears when all its files are there.
pub fn show(cached: &Path, key: &str, folder: &Path) -> std::io::Result<()> {
    let target = folder.join(key);
    // Beside the folder, where the sandbox does not see it.
    let draft = folder.with_extension(format!("draft-{}", uuid::Uuid::new_v4()));
    if !target.is_dir() {
        let linked = tree::link(cached, &draft).and_then(|()| std::fs::rename(&draft, &target));
        if let Err(error) = linked {
            let _ = std::fs::remove_dir_all(&draft);
            // Another installation of the same packages may have been quicker.
            if !target.is_dir() {
                return Err(error);
            }
        }
    }
    std::os::unix::fs::symlink(key, &draft)?;
    std::fs::rename(&draft, folder.join(SITE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_packages_are_where_the_link_leads() {
        let home = tempfile::tempdir().unwrap();
        let (cached, folder) = (home.path().join("cached"), home.path().join("p"));
        std::fs::create_dir_all(cached.join("polars")).unwrap();
        std::fs::write(cached.join("polars/__init__.py"), "x = 1").unwrap();
        prepare(&folder).unwrap();
        assert_eq!(std::fs::read_dir(folder.join(SITE)).unwrap().count(), 0);
        for key in ["one", "two", "one"] {
            show(&cached, key, &folder).unwrap();
            let text = std::fs::read_to_string(folder.join(SITE).join("polars/__init__.py")).unwrap();
            assert_eq!(text, "x = 1");
            assert_eq!(std::fs::read_link(folder.join(SITE)).unwrap(), Path::new(key));
        }
        let beside = std::fs::read_dir(home.path()).unwrap().count();
        assert_eq!(beside, 2, "no draft is left");
    }
}
