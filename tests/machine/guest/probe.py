def observe():
    import os, glob
    r={}
    for p in glob.glob("/sys/class/net/*/device/numa_node")+glob.glob("/sys/class/net/*/speed")+glob.glob("/sys/devices/system/node/node*/*")+glob.glob("/sys/bus/pci/devices/*/numa_node"):
        try: r[p]=open(p).read()
        except OSError as e: r[p]=str(e)
    r["up"]=open("/proc/uptime").read()
    return r
