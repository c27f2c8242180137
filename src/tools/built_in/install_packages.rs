//! `install_packages`: installs packages from the package index into the session.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::read;
use crate::protocol::packages::InstalledPackages;
use crate::protocol::tool_names::INSTALL_TOOL;
use crate::schema::parameters_of;
use crate::tools::contract::{Context, Definition, Tool, ToolFuture, ToolOutput};
use crate::tools::port::as_failure;

/// The most packages of one call.
const PACKAGES: usize = 100;

pub struct InstallPackages;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Names of packages, with extras and versions if need be, as in `polars` or `numpy<3`.
    #[schemars(length(min = 1, max = PACKAGES))]
    packages: Vec<String>,
}

impl Tool for InstallPackages {
    fn definition(&self) -> Definition {
        Definition {
            description_zh: Some(
                "把 Python 软件包安装到会话中，随后的代码可以直接导入。只能写软件包名称、附加项和版本范围，不能写网址、路径或选项。返回会话中已安装的软件包及其版本。"
                    .into(),
            ),
            output: Some(json!({"type": "array", "items": {"type": "string"}})),
            outside: true,
            ..Definition::new(
                INSTALL_TOOL,
                "Installs Python packages into the session; code can import them at once. Takes names with extras and \
                 ranges of versions, no URLs, paths or options. Returns the packages that are installed, with their \
                 versions.",
                parameters_of::<Arguments>(),
            )
        }
    }

    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture {
        Box::pin(async move {
            let Arguments { packages } = read(arguments)?;
            let InstalledPackages { packages, in_image, .. } =
                context.port()?.install(packages).await.map_err(as_failure)?;
            let installed = packages.iter().map(|package| format!("{} {}", package.name, package.version));
            let before = in_image.iter().map(|package| format!("{} {}", package.name, package.version));
            Ok(ToolOutput::Value(installed.chain(before).collect::<Vec<_>>().into()))
        })
    }
}
