"""What the tests share. Fixtures come from the files that are marked, see conftest.py.

what a test runs
  processes     run, start and end programs, in the environment of a fresh login
  forks         * entry scripts as copies of a running Python: the fixture `script`
  inside        commands inside the environment that set_up.py made
  terminal      * a script on a terminal
  repository    a bare repository to compute scripts from; Clone: a copy of this one to run
  builds        * what the build of an image runs
  emitted       every kind of script that is emitted; plans: what golden files show of one
  requests      * the lines of a submission, and of the start of a job; fixtures: all of these
clones with more
  environments  * installed packages, for each runtime; wheels; packages: repositories to install
  overlays      * an overlay          lab        * images of a registry of the test's own
  git           * an upstream         patients   * all that doctor.py looks at
  jobs          * jobs with PyTorch   members    * two users of a group, and a Slurm of one node
servers
  registry      * images              slurm      * a cluster of three nodes
  hub           models and datasets
particular tests
  stacks        what a stack starts   kills      scripts that are killed at each command
  documentation blocks, links and commands of the pages
  secret_forms  the forms that secrets have
which tests run
  needs         * skip what this machine lacks, with the reason
  tiers         * fast, real, slow; who runs beside whom
  directories   * what runs when its directory changed
  cache         what is slow to make, kept between runs; tree: the files of this repository
  fixtures      * small fixtures of all tests; real: * those of real ones
"""
