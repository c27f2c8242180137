#!/bin/sh
# Runs once inside a new image, as its last step: makes it fast to start and small, and removes what code in a
# sandbox does not need. Usage: finish.sh base|science
set -eu
kind=$1

command -v python >/dev/null || ln -s python3 /usr/bin/python

# Belljar mounts the session's files and its own kernel here, and a list of hosts; a read-only root cannot make them later.
mkdir -p /workspace /belljar
touch /etc/hosts

# pip and its bundled wheels are removed before compiling, so that no bytecode is made for them.
rm -rf /usr/local/lib/python3.*/site-packages/pip* /usr/lib/python3*/ensurepip /usr/local/lib/python3.*/ensurepip
rm -f /usr/local/bin/pip* /usr/local/bin/idle* /usr/local/bin/2to3*

# The libraries' own tests are a quarter of the science image. numpy's stay: numpy.testing needs one of the files.
find /usr/lib/python3/dist-packages /usr/local/lib/python3.*/site-packages -type d -name tests ! -path '*/numpy/*' \
    -prune -exec rm -rf {} + 2>/dev/null || true

if [ "$kind" = science ]; then
    # Searching for fonts takes seconds, and a sandbox leaves no cache for the next one, so it is done here. Belljar
    # copies this folder to a writable MPLCONFIGDIR, where matplotlib finds its settings and the list of fonts.
    MPLCONFIGDIR=/usr/share/belljar/matplotlib MPLBACKEND=Agg python3 -c 'import matplotlib.font_manager'
    rm -f /usr/share/belljar/matplotlib/*.matplotlib-lock
    chmod -R a+rX /usr/share/belljar
fi

# The daemon's installers take it, if it is root's. It is not on the PATH: for code in sandboxes there is another one.
uv=/usr/libexec/belljar/uv
if [ -e $uv ]; then
    chown 0:0 ${uv%/*} $uv
    chmod 755 ${uv%/*} $uv
fi

# The root is read-only later: a module without bytecode would be compiled again in each sandbox.
python3 - <<'PYTHON'
import compileall, os, sys
for folder in filter(os.path.isdir, sys.path):
    compileall.compile_dir(folder, quiet=2)
PYTHON

# Package managers, and perl, which only they need. The list of installed packages stays, for scanners.
rm -rf /usr/bin/apt* /usr/bin/dpkg* /usr/sbin/dpkg* /usr/bin/perl* /usr/lib/apt /usr/lib/dpkg /usr/lib/*/perl* \
    /usr/share/dpkg /usr/share/perl* /etc/apt /etc/dpkg /var/lib/apt /var/cache/apt /var/cache/debconf
find /var/lib/dpkg -mindepth 1 ! -name status -delete

find /usr/share/doc -type f ! -name copyright -delete 2>/dev/null || true
rm -rf /usr/share/man /usr/share/info /usr/share/locale /usr/share/lintian /usr/share/bug \
    /usr/share/unicode /var/log/* /var/cache/ldconfig /root/.cache
find /tmp /var/tmp -mindepth 1 -delete

# Setuid and setgid bits are removed last, so that nothing above can bring one back.
find / -xdev \( -type f -o -type d \) -perm /6000 -exec chmod ug-s {} +
