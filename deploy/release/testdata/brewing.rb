# Does with our formula what Homebrew would do on one platform: prints the version, the URL and the checksum of the archive, and the
# names of the files that are installed.
path, SYSTEM, PROCESSOR = ARGV

class Folder
  def install(files) = puts(files.is_a?(Hash) ? files.keys : files)
end

class Formula
  class << self
    def desc(text) = text.length <= 80 && text !~ /^(an?|the)\b|\.$/i || abort("brew audit refuses #{text}")
    def homepage(url) = url.start_with?("https://") || abort("brew audit refuses #{url}")
    def license(name) = name
    def version(number) = puts(number)
    def url(address) = puts(address)
    def sha256(sum) = puts(sum)
    def test = nil
    def on_macos = SYSTEM == "darwin" && yield
    def on_linux = SYSTEM == "linux" && yield
    def on_arm = PROCESSOR == "arm64" && yield
    def on_intel = PROCESSOR == "amd64" && yield
  end

  %i[bin man1 bash_completion zsh_completion fish_completion].each { |name| define_method(name) { Folder.new } }
end

load path
EtcdWrapper.new.install
