# Completion of etcd-wrapper for fish: etcd-wrapper completion fish | source
function __etcd_wrapper_complete
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    set -l candidates ($words[1] __complete $words[2..-1] "$last" 2>/dev/null | string match -v ':*') # without the directive of etcd's tools
    if set -q candidates[1]
        printf '%s\n' $candidates
    else
        __fish_complete_path "$last"
    end
end
complete -c etcd-wrapper -f -a '(__etcd_wrapper_complete)'
