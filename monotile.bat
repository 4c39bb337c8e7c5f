@echo off
rem Starts Monotile on Windows: double-click it, or call it with the launcher's own commands and options.
setlocal
title Monotile
set "PYTHON="
for %%V in (3.13 3.12 3.11 3.14) do (
    if not defined PYTHON py -%%V -c "" >nul 2>nul && set "PYTHON=py -%%V"
)
if not defined PYTHON python -c "" >nul 2>nul && set "PYTHON=python"
if not defined PYTHON (
    echo No Python was found. Install a 64-bit Python 3.13 from python.org, then start Monotile again.
    pause
    exit /b 1
)
%PYTHON% "%~dp0launcher.py" %*
set "CODE=%ERRORLEVEL%"
if not "%CODE%"=="0" pause
exit /b %CODE%
